"""Samples of weights that are not the policy's: who drew each token, what is kept of it, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.config.run_spec import RunSpec
from harness.engines.base import make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.records.files import DamagedRecordError
from harness.run.learning import make_learner
from harness.run.learning.base import Examples
from harness.run.learning.rollouts import PolicyGradientLearner, Rollouts
from harness.run.learning.slices import Begun, InSlices
from harness.run.prompts import training_prompts
from harness.training.batch import Batch
from harness.training.checkpoint import checkpoint_folders, load_latest
from harness.training.sequences import score_completions
from harness.training.update_report import StepReport
from tests.harness.run.small import small_spec, trained, trained_and_killed

QUICK: dict[str, Any] = {
    "train.steps": 6,
    "train.learning_rate": 1e-2,
    "train.reference_rows": 0,
    "eval.every": 0,
    "eval.problems": 2,
    "eval.samples": 1,
}
OLD: dict[str, Any] = {**QUICK, "rollout.staleness_steps": 2}
SLICED: dict[str, Any] = {**QUICK, "rollout.partial": {"type": "slices", "slice_tokens": 8}}


class Watched:
    """A learner that is told to do its steps, and what it learned from with the weights that were there before each."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.start: LanguageModel = load_model("builtin:tiny")
        pool = training_prompts(spec, {})
        engine = make_engine(spec.rollout, self.start)
        learner = make_learner(spec, self.start, Examples(pool), engine, folder / "checkpoints")
        assert isinstance(learner, PolicyGradientLearner)
        self.learner, self.batches, self.outcomes = learner, list[Batch](), list[StepReport]()
        self.weights: list[dict[str, Tensor]] = []
        learn = learner._learn

        def watched(batch: Batch, step: int) -> Any:
            self.batches.append(batch)
            return learn(batch, step)

        learner._learn = watched  # type: ignore[method-assign]

    def do(self, steps: int) -> Watched:
        for _ in range(steps):
            self.weights.append(copy.deepcopy(self.start.model.state_dict()))
            self.outcomes.append(self.learner.step(len(self.weights), 0.0))
        return self

    def logps_under(self, weights_step: int, batch: Batch) -> Tensor:
        """[N, T] by a pass over whole completions."""
        other = load_model("builtin:tiny")
        other.model.load_state_dict(self.weights[weights_step])
        rows = torch.arange(len(batch))
        logps = torch.zeros(batch.sampler_logps.shape)
        found, _ = score_completions(other.model, batch.sequences, rows, 1.0, other.pad_token_id)
        logps[:, : found.shape[1]] = found.detach()
        return logps


def agree(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-4)


@pytest.mark.slow
def test_stale_completions_are_those_of_the_weights_of_so_many_steps_ago(tmp_path: Path) -> None:
    watched = Watched(small_spec(OLD), tmp_path).do(6)
    for step, batch in enumerate(watched.batches, 1):
        source = max(0, step - 3)
        mask = batch.sequences.mask
        assert agree(batch.sampler_logps[mask], watched.logps_under(source, batch)[mask]), step
        assert step == 1 or not agree(batch.sampler_logps[mask], watched.logps_under(step - 1, batch)[mask]), step
        metrics = watched.outcomes[step - 1].metrics
        assert metrics["staleness/steps_mean"] == metrics["staleness/steps_max"] == min(step - 1, 2)
    mismatches = [outcome.metrics["mismatch/k3"] or 0.0 for outcome in watched.outcomes]
    assert mismatches[0] == pytest.approx(0, abs=1e-6) and min(mismatches[1:]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("staleness_steps", [0, 1])
def test_every_token_of_a_slice_keeps_the_log_prob_of_the_weights_that_drew_it(
    tmp_path: Path, staleness_steps: int
) -> None:
    watched = Watched(small_spec({**SLICED, "rollout.staleness_steps": staleness_steps}), tmp_path).do(6)
    seen = 0
    for step, batch in enumerate(watched.batches, 1):
        assert batch.steps_old is not None
        mask = batch.sequences.mask
        assert (batch.steps_old[~mask] == 0).all() and (batch.steps_old >= min(step - 1, staleness_steps) * mask).all()
        for steps_old in sorted(set(batch.steps_old[mask].tolist())):
            chosen = mask & (batch.steps_old == steps_old)
            under = watched.logps_under(step - 1 - steps_old, batch)
            assert agree(batch.sampler_logps[chosen], under[chosen]), (step, steps_old)
            newest = watched.logps_under(step - 1, batch)
            if steps_old:
                assert not agree(batch.sampler_logps[chosen], newest[chosen])
        seen += len(set(batch.steps_old[mask].tolist())) > 1
    assert seen >= 2, "completions that several weights have written"


def under_way(watched: Watched) -> list[Begun]:
    writer = watched.learner._rollouts.writer
    assert isinstance(writer, InSlices)
    return writer.under_way


@pytest.mark.slow
def test_the_first_slice_is_how_a_whole_completion_begins(tmp_path: Path) -> None:
    spec = small_spec(SLICED)
    watched = Watched(spec, tmp_path).do(2)
    plain, start = spec.model_copy(update={"rollout": small_spec(QUICK).rollout}), load_model("builtin:tiny")
    problems = watched.learner._order.draw(1, plain.rollout.prompts_per_step, 0.0)
    whole = Rollouts(plain, start, make_engine(plain.rollout, start)).writer.draw(problems, 1, 32)

    def beginnings(batch: Batch) -> set[tuple[int, ...]]:
        rows = zip(batch.sequences.completions.tolist(), batch.sequences.lengths.tolist(), strict=True)
        return {tuple(row[: min(8, length)]) for row, length in rows}

    begun = beginnings(watched.batches[0])
    assert begun and begun <= beginnings(whole)
    assert {tuple(one.tokens[:8]) for one in under_way(watched) if one.step == 1} <= beginnings(whole)


@pytest.mark.slow
def test_slices_lose_nothing_and_count_what_they_draw(tmp_path: Path) -> None:
    watched = Watched(small_spec(SLICED), tmp_path).do(3)
    prompts = len({one.group for one in under_way(watched)})
    assert prompts
    learned = sum(len(set(batch.groups.tolist())) for batch in watched.batches)
    assert learned + prompts == 3 * 4
    waiting = sum(len(one.tokens) for one in under_way(watched))
    trained = sum(int(batch.sequences.lengths.sum()) for batch in watched.batches)
    assert sum(outcome.generated_tokens for outcome in watched.outcomes) == trained + waiting
    assert watched.outcomes[-1].metrics["staleness/prompts_under_way"] == prompts
    for batch in watched.batches:
        assert (batch.sequences.lengths <= 32).all()
        at_limit = batch.sequences.lengths == 32
        assert (at_limit | ~batch.truncated).all()
        assert len(set(batch.groups.tolist())) >= 1


@pytest.mark.slow
def test_past_weights_lie_on_the_disk_once_and_go_with_the_last_step(tmp_path: Path) -> None:
    whole, killed = trained_and_killed(tmp_path, OLD, before_step=6)
    past = killed.checkpoints / "past"
    # Steps 3, 4 and 5 go on from 5; 2 to 4 from the checkpoint of step 4; 1 and 2 from that of step 2.
    assert sorted(int(path.stem) for path in past.iterdir()) == [1, 2, 3, 4, 5]
    last = load_latest(killed.checkpoints)
    assert last is not None and last.step == 4
    assert set(last.progress["past_weights"]) == {"2", "3", "4"}
    fresh = trained(tmp_path / "fresh", {**QUICK, "train.steps": 2})
    old, new = ((checkpoint_folders(cell.checkpoints)[-1] / "trainer.pt").stat().st_size for cell in (killed, fresh))
    assert old < 1.01 * new
    assert not (whole.checkpoints / "past").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "goes_on_from"), [(4, 2), (2, 0)])
def test_a_checkpoint_whose_past_weights_are_damaged_is_passed_over(
    tmp_path: Path, lost: int, goes_on_from: int
) -> None:
    """Those after step 4 are the newest checkpoint's alone; those after step 2 are both checkpoints'."""
    whole, killed = trained_and_killed(tmp_path, OLD, before_step=6)
    path = killed.checkpoints / "past" / f"{lost:06d}.safetensors"
    if lost == 4:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert trained(killed.path, OLD).read_starts()[-1]["from_step"] == goes_on_from
    assert str(path) in killed.log.read_text()
    assert killed.read_steps() == whole.read_steps()
    assert killed.read_status()["digest"] == whole.read_status()["digest"]


def test_weights_that_change_under_a_running_cell_end_it(tmp_path: Path) -> None:
    watched = Watched(small_spec({**OLD, "rollout.staleness_steps": 1, "rollout.prompts_per_step": 1}), tmp_path).do(2)
    (tmp_path / "checkpoints" / "past" / "000001.safetensors").write_bytes(b"other weights")
    with pytest.raises(DamagedRecordError, match=r"000001\.safetensors"):
        watched.do(1)


def test_without_staleness_nothing_of_it_is_recorded(tmp_path: Path) -> None:
    watched = Watched(small_spec({**QUICK, "rollout.prompts_per_step": 1}), tmp_path).do(1)
    assert not [name for name in watched.outcomes[0].metrics if name.startswith("staleness/")]
    assert watched.learner._start.model is watched.learner._sampling_model()
    assert watched.learner.progress().keys() == {"order", "limit"}
    assert watched.learner.trainer_state().keys() == {"update", "round"}
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"rollout.staleness_steps": 5}, r"staleness_steps=5 with train\.steps=6: all completions would be"),
        ({"rollout.staleness_steps": 1, "algorithm": "rft", "rollout.sampler": "initial"}, "set sampler to policy"),
        (
            {"rollout.staleness_steps": 1, "train.processes": 2, "train.sharding": "fully"},
            "split weights can only sample from the current policy. Set staleness_steps to 0",
        ),
        ({"rollout.partial": {"type": "slices", "slice_tokens": 12}}, "among the smaller divisors"),
        ({"rollout.partial": {"type": "slices", "slice_tokens": 32}}, "among the smaller divisors"),
        ({"rollout.partial": {"type": "slices", "slice_tokens": 4}}, "a completion of 8 slices would not end before"),
        ({**SLICED, "algorithm": "rft", "rollout.sampler": "initial"}, "with sampler=initial: the policy goes on"),
        (
            {**SLICED, "rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 3}},
            r"with staged\.type=at_step: the policy goes on",
        ),
        ({**SLICED, "rollout.stop": ["#"]}, "stop strings '#' .* would not be seen"),
        ({**SLICED, "task.template": "gsm8k_8shot"}, "stop strings 'Question:'"),
        ({**SLICED, "objective.zero_std": "refill"}, "would wait for all of their completions"),
        ({**SLICED, "algorithm": "opd"}, r"with teacher\.type=model: a teacher is asked"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RefusedError, match=complaint):
        small_spec({**QUICK, **settings})


def test_the_longest_staleness_and_the_shortest_slice_are_accepted() -> None:
    assert small_spec({**QUICK, "rollout.staleness_steps": 4}).rollout.staleness_steps == 4
    slices = {"rollout.partial": {"type": "slices", "slice_tokens": 4}, "train.steps": 8}
    assert small_spec({**QUICK, **slices}).rollout.partial.type == "slices"
