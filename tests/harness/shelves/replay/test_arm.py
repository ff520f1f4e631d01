"""Replays of cells that really ran."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from tests.refusals import refuses

pytestmark = pytest.mark.slow

SHORT = {"eval.every": 0, "eval.problems": 2, "eval.samples": 1, "eval.k": [1], "train.learning_rate": 3e-3}
UPDATES = {"train.epochs": 2, "train.updates_per_rollout": 2}


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
    "cispo": {"algorithm": "cispo", "objective.rule.weight_max": 1.1},
    "gspo": {"algorithm": "gspo"},
    "clip_cov": {"algorithm": "clip_cov", "objective.select.fraction": 0.2, "objective.select.cov_low": -9.0},
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
    assert len(cispo.remarks) == 1 and "zero_std=refill" in cispo.remarks[0]
    by_length = [(one.weights.gradient_share or {})["length_tokens"] for one in (own, dr_grpo)]
    longest = list(by_length[0])[-1]
    assert by_length[1][longest] > by_length[0][longest], "long wrong answers weigh more"
    for row in document.algorithms:
        assert row.weights.gradient_share is not None
        for shares in row.weights.gradient_share.values():
            assert math.fsum(shares.values()) == pytest.approx(1)
    written = document.to_json()
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_without_token_records_every_ratio_is_1_and_that_is_told(unrecorded: CellRecord) -> None:
    document = replay_arm([unrecorded], ["grpo"])
    assert document.log_probs == "sampler"
    (own, _) = document.algorithms
    assert own.weights.clipped_frac == 0
    assert 0 < own.weights.guessed_frac < 1


@pytest.mark.parametrize("algorithm", ["grop", "dpo", "ppo", "reinforce_pp", "skywork_or1"])
def test_what_cannot_be_replayed_is_refused(grpo: CellRecord, algorithm: str) -> None:
    with pytest.raises(RefusedError) as refused:
        replay_arm([grpo], ["grpo", algorithm])
    assert algorithm in str(refused.value)


def test_an_own_objective_that_cannot_be_replayed_is_left_out_and_told(tmp_path: Path) -> None:
    pairs = {"algorithm": "dpo", "pairs.pairing": "all", "train.updates_per_rollout": 1, "train.epochs": 1}
    settings: dict[str, dict[str, Any]] = {"critic": {"algorithm": "ppo"}, "pairs": pairs}
    for why, own in settings.items():
        document = replay_arm([trained(tmp_path / why, own)], ["grpo", "dapo"])
        assert [row.algorithm for row in document.algorithms] == ["grpo", "dapo"]
        assert why in (document.as_trained or "")
    assert document.algorithms[0].remarks == []
    assert "overlong.type=soft" in document.algorithms[1].remarks[0]


def test_without_rollouts_there_is_nothing_to_replay(grpo: CellRecord, tmp_path: Path) -> None:
    with refuses(RefusedError, "shelves.replay.step_not_stored", step=5):
        replay_arm([grpo], ["grpo"], steps=[range(2, 3), range(3, 10**9)])
    empty = tmp_path / grpo.path.name
    empty.mkdir()
    write_json(empty / "spec.json", grpo.spec)
    with refuses(RefusedError, "shelves.replay.no_rollouts"):
        replay_arm([CellRecord.at(empty)], ["grpo"])
