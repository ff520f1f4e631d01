"""Replays of cells that really ran."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithms import combine_metrics
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.records.files import write_json
from harness.shelves.replay.arm import AS_TRAINED, replay_arm
from harness.shelves.replay.stored import read_steps
from harness.shelves.replay.weights import replay_step
from tests.harness.run.small import run_cell, small_spec

pytestmark = pytest.mark.slow

SHORT = {"eval.every": 0, "eval.problems": 2, "eval.samples": 1, "eval.k": [1], "train.learning_rate": 3e-3}
UPDATES = {"train.epochs": 2, "train.updates_per_rollout": 2}


PLAIN = {
    "train.updates_per_rollout": 1,
    "train.epochs": 1,
    "objective.rule.type": "policy_gradient",
    "objective.ratio": "none",
    "objective.aggregation": "seq_mean_token_sum",
}


def trained(folder: Path, settings: dict[str, Any]) -> CellRecord:
    path = folder / "arm-s0-0123456789"
    path.mkdir(parents=True)
    cell = CellRecord.at(path)
    spec = small_spec(SHORT | UPDATES | settings)
    run_cell(cell, spec)
    write_json(path / "spec.json", json.loads(spec.model_dump_json()))
    return cell


OWN: dict[str, dict[str, Any]] = {
    "grpo": {"objective.rule.clip_low": 0.05, "objective.rule.clip_high": 0.05},
    "dr_grpo": {"algorithm": "dr_grpo"},
    "cispo": {"algorithm": "cispo", "objective.rule.weight_max": 1.1},
    "gspo": {"algorithm": "gspo"},
    "clip_cov": {"algorithm": "clip_cov", "objective.select.fraction": 0.2, "objective.select.cov_low": -9.0},
    "kl_cov": {"algorithm": "kl_cov"},
    "dapo": {"algorithm": "dapo", "objective.zero_std": "drop"},
    "kl to the rollout": {"objective.kl.where": "loss", "objective.kl.reference": "iteration_start"},
    "brpo": {"algorithm": "brpo"},
    "std of the mini-batch": {"algorithm": "magistral"},
}


@pytest.mark.parametrize("name", OWN)
def test_the_replay_of_a_cells_own_objective_is_what_training_recorded(name: str, tmp_path: Path) -> None:
    """Loss, clipping and ratios of every step, and what was done with every token."""
    cell = trained(tmp_path, OWN[name])
    spec = RunSpec.model_validate(cell.spec)
    records = cell.read_rollouts(["step", "token/advantage", "token/clipped", "token/masked", "token/log_ratio"])
    assert records is not None
    rows = records.to_pylist()
    for stored, metrics in zip(read_steps(cell, spec, None), cell.read_steps(), strict=True):
        weighed = replay_step(stored, spec.policy_gradient, spec)
        assert len(weighed.losses) == (metrics["optimizer_steps"] or 0)
        if metrics["loss/policy"] is None:
            assert not weighed.weight.any(), "nothing could act"
            continue
        got = combine_metrics(weighed.losses, len(weighed.losses))
        assert got["loss/policy"] == pytest.approx(metrics["loss/policy"], rel=1e-4, abs=1e-6)
        for row, record in enumerate(row for row in rows if row["step"] == stored.step):
            for epoch in range(2 if record["token/clipped"] else 0):
                if record["token/log_ratio"][epoch] is None:
                    continue
                length = len(record["token/advantage"])
                assert weighed.clipped[epoch, row, :length].tolist() == record["token/clipped"][epoch]
                assert weighed.masked[epoch, row, :length].tolist() == record["token/masked"][epoch]
    assert any(metrics["loss/policy"] for metrics in cell.read_steps())


def test_weights_are_those_of_training(tmp_path: Path) -> None:
    """For the plain policy gradient -d loss / d log pi is A / rows, from the recorded advantages."""
    cell = trained(tmp_path, PLAIN)
    spec = RunSpec.model_validate(cell.spec)
    records = cell.read_rollouts(["step", "token/advantage"])
    assert records is not None
    rows = records.to_pylist()
    for stored in read_steps(cell, spec, None):
        weight = replay_step(stored, spec.policy_gradient, spec).weight[0]
        for row, record in enumerate(row for row in rows if row["step"] == stored.step):
            expected = np.array(record["token/advantage"]) / 16
            np.testing.assert_allclose(weight[row, : len(expected)], expected, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    return trained(tmp_path_factory.mktemp("grpo"), {"train.learning_rate": 3e-4})


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    return trained(tmp_path_factory.mktemp("unrecorded"), {"train.token_records_max_tokens": 0})


def test_the_document(grpo: CellRecord) -> None:
    document = replay_arm([grpo], ["grpo", "cispo", "dr_grpo"], steps=[range(1, 2), range(3, 4)])
    assert (document.arm, document.steps, document.log_probs) == ("arm", [1, 3], "recorded")
    assert [row.algorithm for row in document.algorithms] == [AS_TRAINED, "grpo", "cispo", "dr_grpo"]
    own, same, cispo, dr_grpo = document.algorithms
    assert replace(own, algorithm="grpo") == same
    sizes = [one.weights.weight_abs_mean or 0.0 for one in (cispo, same, dr_grpo)]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    assert cispo.remarks == [
        "groups of equal rewards are dropped (zero_std=refill), and no others drawn in their place"
    ]
    for row in document.algorithms:
        assert row.weights.gradient_share is not None
        for shares in row.weights.gradient_share.values():
            assert math.fsum(shares.values()) == pytest.approx(1)
    written = document.to_json()
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_long_wrong_answers_weigh_more_without_the_division_by_length(grpo: CellRecord) -> None:
    own, dr_grpo = replay_arm([grpo], ["dr_grpo"]).algorithms
    by_length = [(one.weights.gradient_share or {})["length_tokens"] for one in (own, dr_grpo)]
    longest = list(by_length[0])[-1]
    assert by_length[1][longest] > by_length[0][longest]


def test_without_token_records_every_ratio_is_1_and_that_is_told(unrecorded: CellRecord) -> None:
    document = replay_arm([unrecorded], ["grpo"])
    assert document.log_probs == "sampler"
    (own, _) = document.algorithms
    assert own.weights.clipped_frac == 0
    assert 0 < own.weights.guessed_frac < 1


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("grop", "unknown algorithm 'grop'; did you mean grpo"),
        ("dpo", "learns from pairs of completions"),
        ("ppo", "need the critic's values"),
        ("reinforce_pp", "log-probs of the reference policy"),
        ("skywork_or1", "entropy bonus has a gradient through all tokens"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(grpo: CellRecord, algorithm: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        replay_arm([grpo], ["grpo", algorithm])


def test_an_own_objective_that_cannot_be_replayed_is_left_out_and_told(tmp_path: Path) -> None:
    cell = trained(tmp_path, {"algorithm": "ppo"})
    document = replay_arm([cell], ["grpo"])
    assert [row.algorithm for row in document.algorithms] == ["grpo"]
    assert "critic's values" in (document.as_trained or "")


def test_rollouts_of_a_cell_that_learned_from_pairs(tmp_path: Path) -> None:
    settings = {"algorithm": "dpo", "pairs.pairing": "all", "train.updates_per_rollout": 1, "train.epochs": 1}
    document = replay_arm([trained(tmp_path, settings)], ["grpo", "dapo"])
    assert [row.algorithm for row in document.algorithms] == ["grpo", "dapo"]
    assert document.as_trained == "it learns from pairs, which rollouts do not hold"
    assert document.algorithms[0].remarks == []
    assert "overlong.type=soft" in document.algorithms[1].remarks[0]


def test_without_rollouts_there_is_nothing_to_replay(grpo: CellRecord, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="has no rollouts of step 5; stored are steps 1 to 4"):
        replay_arm([grpo], ["grpo"], steps=[range(2, 3), range(3, 10**9)])
    empty = tmp_path / grpo.path.name
    empty.mkdir()
    write_json(empty / "spec.json", grpo.spec)
    with pytest.raises(RefusedError, match="no rollouts are stored"):
        replay_arm([CellRecord.at(empty)], ["grpo"])
