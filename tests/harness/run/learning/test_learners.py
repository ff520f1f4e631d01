from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config.run_spec import RunSpec
from harness.engines.base import make_engine
from harness.models.language_model import load_model
from harness.records import CellRecord
from harness.run.cell import CellRun
from harness.run.encoded_pairs import load_pairs
from harness.run.learning import make_learner
from harness.run.learning import pairs as learning_pairs
from harness.run.learning.base import Examples, Learner
from harness.run.prompts import training_prompts
from harness.training.preference_update import PairBatch, PreferenceUpdate
from harness.training.reference import exact_kl
from harness.training.sequences import Sequences
from harness.training.update_report import StepReport
from tests.harness.run.bench import rollout_rows
from tests.harness.run.small import ignore_progress, new_cell, small_spec, trained
from tests.harness.run.stages_here import make_stage

ONLINE: dict[str, Any] = {"algorithm": "dpo", "pairs.pairing": "all", "eval.every": 0, "eval.problems": 2}


def learner(settings: dict[str, Any]) -> tuple[Learner, Any]:
    spec = small_spec({**ONLINE, **settings})
    start = load_model("builtin:tiny")
    learner = make_learner(spec, start, Examples(training_prompts(spec, {})), make_engine(spec.rollout, start))
    return learner, start.model


def texts(learner: Learner, step: int) -> list[str]:
    return [str(row["text"]) for row in learner.step(step, 0.0).rollouts]


@pytest.mark.slow
def test_pairs_of_the_policy_are_counted_and_recorded(tmp_path: Path) -> None:
    cell = trained(tmp_path, ONLINE)
    rows = rollout_rows(cell)
    for step in cell.read_steps():
        of_step = [row for row in rows if row["step"] == step["step"]]
        assert sum(row["times_chosen"] for row in of_step) == step["pairs/count"]
        assert sum(row["times_rejected"] for row in of_step) == step["pairs/count"]
        assert all(not row["times_chosen"] or row["correct"] for row in of_step)
        assert all(not row["times_rejected"] or not row["correct"] for row in of_step)
        assert step["generated_tokens"] > 0
        assert 0 <= step["rewards/accuracy"] <= 1
    assert any(step["pairs/count"] > 4 for step in cell.read_steps())


def test_without_unequal_rewards_nothing_is_learned() -> None:
    alike, model = learner({"reward.parts.correct": 0.0})
    before = copy.deepcopy(model.state_dict())
    outcome = alike.step(1, 0.0)
    assert (outcome.metrics["pairs/count"], outcome.metrics["pairs/groups_without_pair"]) == (0, 4)
    assert outcome.metrics["rewards/accuracy"] is None
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.slow
def test_whose_completions_are_paired() -> None:
    """Step 3 again, from policies of three ages: the noise is the same, so only the sampler tells them apart."""
    settings = {"train.learning_rate": 3e-2, "train.steps": 5}
    fresh, _ = learner(settings)
    from_start = texts(fresh, 3)
    by_sampler = {}
    for sampler in ("policy", "initial", "round"):
        trained, _ = learner(
            {**settings, "rollout.sampler": sampler, **({"rollout.round_steps": 2} if sampler == "round" else {})}
        )
        by_sampler[sampler] = [texts(trained, step) for step in (1, 2, 3)]
    assert by_sampler["initial"][2] == from_start
    assert by_sampler["policy"][2] != from_start
    # The second step of a round draws from its start, as offline; the third begins another round, as online.
    assert by_sampler["round"][1] == by_sampler["initial"][1] != by_sampler["policy"][1]
    assert by_sampler["round"][2] != from_start


@pytest.mark.slow
def test_copies_are_made_also_where_nothing_is_measured_on_them() -> None:
    unmeasured = {"train.reference_rows": 0, "train.learning_rate": 3e-3, "rollout.prompts_per_step": 8}
    online, _ = learner(unmeasured)
    margins = [online.step(step, 0.0).metrics["rewards/margin"] or 0.0 for step in (1, 2)]
    assert margins[0] == pytest.approx(0, abs=1e-4)
    assert abs(margins[1]) > 1e-2
    fresh, _ = learner(unmeasured)
    offline, _ = learner({**unmeasured, "rollout.sampler": "initial"})
    expected = texts(fresh, 2)
    assert [texts(offline, step) for step in (1, 2)][1] == expected


@pytest.mark.slow
def test_the_kl_is_measured_on_all_that_was_drawn() -> None:
    """As for arms without pairs, and also in a step that gives none."""
    settings = {"train.reference_rows": 99, "rollout.prompts_per_step": 8, "train.learning_rate": 3e-3}
    trained, _ = learner(settings)
    trained.step(1, 0.0)
    initial = load_model("builtin:tiny").model
    outcome = trained.step(2, 0.0)
    again, _ = learner(settings)
    again.step(1, 0.0)
    moved = again._start.model  # type: ignore[attr-defined]
    rows: Any = outcome.rollouts
    spec = small_spec({**ONLINE, **settings})
    prompts = {problem.id: problem.problem for problem in training_prompts(spec, {})}
    start = load_model("builtin:tiny")
    longest = max(len(row["tokens"]) for row in rows)
    sequences = Sequences(
        [start.encode(prompts[row["problem_id"]]) for row in rows],
        torch.tensor([[*row["tokens"], *[0] * (longest - len(row["tokens"]))] for row in rows]),
        torch.tensor([len(row["tokens"]) for row in rows]),
    )
    kl = exact_kl(moved, initial, sequences, torch.arange(len(rows)), 1.0, start.pad_token_id)
    assert outcome.metrics["kl/sequence_start"] == pytest.approx(float(kl.sum(1).mean()), rel=1e-4)
    assert outcome.metrics["kl/exact_start"] == pytest.approx(float(kl.sum() / sequences.lengths.sum()), rel=1e-4)


def test_pairs_of_a_prompt_stay_together_and_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, _ = learner({"rollout.prompts_per_step": 8, "pairs.max_per_prompt": 2, "train.learning_rate": 1e-9})
    seen: list[PairBatch] = []
    drawn_at: list[int] = []
    original = learning_pairs.pair_up

    def run(self: Any, pairs: PairBatch, step: int, drawn: Any = None) -> StepReport:
        seen.append(pairs)
        return StepReport({})

    def pair_up(rollout: Any, pairs: Any, seed: int, step: int) -> Any:
        drawn_at.append(step)
        return original(rollout, pairs, seed, step)

    monkeypatch.setattr(PreferenceUpdate, "run", run)
    monkeypatch.setattr(learning_pairs, "pair_up", pair_up)
    for step in (1, 2):
        trained.step(step, 0.0)
    assert drawn_at == [1, 2]
    for batch in seen:
        assert len(batch) > len(set(batch.groups.tolist())) > 1
        prompts = {group: batch.chosen.prompts[row] for row, group in enumerate(batch.groups.tolist())}
        assert all(batch.rejected.prompts[row] == prompts[group] for row, group in enumerate(batch.groups.tolist()))


@pytest.mark.slow
def test_at_the_start_of_a_round_the_policy_is_its_own_reference() -> None:
    rounds = {"rollout.sampler": "round", "rollout.round_steps": 2, "objective.reference": "round_start"}
    trained, _ = learner({**rounds, "train.learning_rate": 3e-3, "rollout.prompts_per_step": 8})
    margins = [trained.step(step, 0.0).metrics["rewards/margin"] or 0.0 for step in (1, 2, 3)]
    assert margins[0] == pytest.approx(0, abs=1e-4)
    assert abs(margins[1]) > 1e-2
    assert margins[2] == pytest.approx(0, abs=1e-4)


def spec_on_dataset(folder: Path, more: dict[str, Any] | None = None, seed: int = 0) -> RunSpec:
    """A spec that learns from 12 pairs in a file."""
    file = folder / "pairs.jsonl"
    rows = [
        {"prompt": f"{a}+{a + 1}=", "chosen": f"{2 * a + 1}#{2 * a + 1}", "rejected": f"{2 * a}#{2 * a}"}
        for a in range(1, 13)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pairs = {"type": "dataset", "data": str(file), "pairs_per_step": 5, "max_tokens": 40}
    return small_spec({"algorithm": "dpo", "eval.every": 0, "eval.problems": 2, "pairs": pairs} | (more or {}), seed)


def run_on_dataset(folder: Path, spec: RunSpec, name: str = "cell") -> CellRecord:
    path = folder / "pairs.safetensors"
    if not path.exists():
        make_stage("pairs", path, spec, load_model("builtin:tiny"))
    cell = new_cell(folder / name)
    CellRun(cell, spec, partial(load_model, "builtin:tiny"), Examples(pairs=load_pairs(path)), ignore_progress).run()
    return cell


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dpo", "simpo", "kto"])
def test_given_pairs_are_learned_without_generating(algorithm: str, tmp_path: Path) -> None:
    more = {"algorithm": algorithm, "train.learning_rate": 3e-3, "pairs.pairs_per_step": 8}
    spec = spec_on_dataset(tmp_path, more)
    cell = run_on_dataset(tmp_path, spec)
    steps = cell.read_steps()
    assert [step["pairs/epochs"] for step in steps] == [pytest.approx(8 * step / 12) for step in (1, 2, 3, 4)]
    assert {step["generated_tokens"] for step in steps} == {0}
    assert not cell.rollouts.exists()
    assert all(step["pairs/count"] == 8 for step in steps)
    # Most pairs of the later steps have been seen before.
    assert steps[-1]["rewards/accuracy"] > 0.5
    assert algorithm != "kto" or all(step["kl/zero_point"] >= 0 for step in steps)
    assert cell.read_status()["state"] == "done"
    assert cell.read_scores()[-1]["final"]


@pytest.mark.slow
def test_given_pairs_come_in_the_order_of_the_seed_and_again_after_a_kill(tmp_path: Path) -> None:
    short, whole = (spec_on_dataset(tmp_path, {"train.steps": steps}) for steps in (2, 4))
    unbroken = run_on_dataset(tmp_path, whole, "unbroken")
    run_on_dataset(tmp_path, short)
    resumed = run_on_dataset(tmp_path, whole)
    assert resumed.read_starts()[-1]["from_step"] == 2
    assert resumed.read_steps() == unbroken.read_steps()
    assert resumed.read_status()["digest"] == unbroken.read_status()["digest"]
    other = run_on_dataset(tmp_path, spec_on_dataset(tmp_path, {"train.steps": 2}, seed=1), "other")
    assert [row["len/chosen"] for row in other.read_steps()] != [row["len/chosen"] for row in resumed.read_steps()[:2]]
