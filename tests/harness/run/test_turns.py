"""Cells on a task with an environment: what is recorded, rewards by turn, resuming, and what is refused."""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from evals.samples import turns_of
from evals.tasks import get_task
from evals.tasks.environment import Turn, turns_from_json
from harness import plugins
from harness.config.model import SupervisedColdStart
from harness.engines.base import make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.processes import Interrupted, Stopping
from harness.run.learning.rollouts import Rollouts
from harness.sampling.conditions import Conditions
from harness.sampling.evaluation import evaluate
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SampleStore
from harness.training.batch import Batch
from harness.training.demonstrations import encoded_demonstrations, require_demonstrations
from tests.harness.run.bench import rollout_rows
from tests.harness.run.small import new_cell, run_cell, small_spec
from tests.refusals import refuses

GUESS: dict[str, Any] = {"task.train": "guess", "eval.tasks": ["guess"], "rollout.max_completion_tokens": 24}
TASKSETS = Path(__file__).parents[2] / "evals" / "shelves" / "tasksets"
GAME = "verifiers:higher_lower"
OF_VERIFIERS: dict[str, Any] = {
    **{"task.train": GAME, "task.template": "plain", "eval.tasks": [GAME], "eval.template": "plain"},
    **{"objective.credit": "steps", "reward.parts.turns": 1.0},
}
NEEDS_VERIFIERS = pytest.mark.skipif(find_spec("verifiers") is None, reason="needs the extra verifiers")
BY_TURN = {"objective.credit": "steps", "reward.parts.turns": 1.0, "reward.parts.correct": 0.0}
PROBLEMS = list(get_task("guess").split("train").load()[:6])


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    """It knows how to write sums, so it writes all kinds of turns here."""
    return load_model("builtin:tiny")


def rewarded(tiny: LanguageModel, **settings: Any) -> Batch:
    spec = small_spec(GUESS | {"rollout.prompts_per_step": 6, **settings})
    rollouts = Rollouts(spec, tiny, make_engine(spec.rollout, tiny))
    return rollouts.reward(rollouts.writer.draw(PROBLEMS, 1, 24), 1)


def test_a_batch_counts_and_keeps_the_policys_own_tokens(tiny: LanguageModel) -> None:
    batch = rewarded(tiny)
    assert {len(turns) for turns in batch.turns} & {2, 3, 4}
    assert batch.generated_tokens == int(batch.sequences.lengths.sum())
    for row, (turns, attempt) in enumerate(zip(batch.turns, batch.attempts, strict=True)):
        assert turns[-1].end_tokens == int(batch.sequences.lengths[row]) <= 24
        assert turns[-1].end_chars == len(attempt.text)
        last = attempt.text[turns[-2].end_chars :] if len(turns) > 1 else attempt.text
        assert attempt.verdict.correct == (
            last.rpartition("#")[2].lstrip("0") == attempt.problem.answer and "#" in last
        )
        said = [tiny.decode(one.tokens) for one in batch.sequences.interjections[row]]
        assert said == [turn.reply for turn in turns[: len(said)]]


def test_one_turn_is_the_first_of_several(tiny: LanguageModel) -> None:
    one, several = rewarded(tiny, **{"rollout.max_turns": 1}), rewarded(tiny)
    assert all(len(turns) == 1 for turns in one.turns)
    assert not any(one.sequences.interjections)
    for row, turns in enumerate(several.turns):
        first = turns[0].end_tokens
        assert several.sequences.completions[row, :first].tolist() == one.sequences.completions[row, :first].tolist()


@pytest.mark.slow
def test_every_turn_of_every_completion_has_noise_of_its_own(tiny: LanguageModel) -> None:
    spec = small_spec(GUESS | {"rollout.prompts_per_step": 6})
    engine, keys = make_engine(spec.rollout, tiny), list[int]()

    class Listening:
        def generate(self, prompts: Any, noise: torch.Tensor, *rest: Any) -> Any:
            keys.extend(noise.flatten().tolist())
            return engine.generate(prompts, noise, *rest)

    rollouts = Rollouts(spec, tiny, Listening())
    batches = [rollouts.writer.draw(PROBLEMS, step, 24) for step in (1, 2)]
    assert len(set(keys)) == len(keys) == sum(len(turns) for batch in batches for turns in batch.turns)


@pytest.mark.slow
def test_rewards_by_turn_stand_where_turns_end(tiny: LanguageModel) -> None:
    """At the end-of-sequence token, which decides where a guess ends, and nowhere else."""
    batch, at_the_end = rewarded(tiny, **BY_TURN), rewarded(tiny, **{"reward.parts.turns": 1.0})
    rewards = batch.token_rewards
    assert rewards is not None
    for row, turns in enumerate(batch.turns):
        at = {turn.end_tokens - 1: turn.reward for turn in turns}
        found = {
            place: float(rewards[row, place]) for place in range(rewards.shape[1]) if not rewards[row, place].isnan()
        }
        assert found == pytest.approx(at)
        for turn in turns[:-1]:
            assert batch.sequences.completions[row, turn.end_tokens - 1] == tiny.tokenizer.eos_token_id
    assert batch.reward_columns["reward/turns"] == at_the_end.reward_columns["reward/turns"]
    assert float(batch.rewards.abs().sum()) == 0
    sums = [sum(turn.reward for turn in turns) for turns in at_the_end.turns]
    right = [attempt.verdict.correct for attempt in at_the_end.attempts]
    assert at_the_end.rewards.tolist() == pytest.approx([a + b for a, b in zip(sums, right, strict=True)])


def test_demonstrations_are_played_with_the_environment(tiny: LanguageModel) -> None:
    """Every solution once an epoch; replies are read and not learned."""
    recipe = SupervisedColdStart(data="solutions:guess")
    by_solution = {
        problem.require_solution().replace("\n", ""): problem for problem in get_task("guess").split("train").load()
    }
    for one in islice(encoded_demonstrations(tiny, recipe), 50):
        problem = by_solution[tiny.decode(one.completion)]
        said = problem.require_solution().split("\n")
        assert one.completion == [token for turn in said for token in tiny.encode_completion(turn)]
        assert len(one.interjections) == len(said) - 1
        for interjection, guessed in zip(one.interjections, said, strict=False):
            assert tiny.decode(one.completion[: interjection.after_tokens]).endswith(guessed)
            higher = int(guessed[1:]) < int(problem.answer)
            assert tiny.decode(interjection.tokens) == ("+" if higher else "w")
    with refuses(RefusedError, "training.whole_turns_only", data="solutions:guess", stop_frac=0.0):
        require_demonstrations(recipe.model_copy(update={"direct_frac": 0.5, "template": "modes_digits"}))


def test_an_evaluation_keeps_the_turns_of_its_samples(tiny: LanguageModel, tmp_path: Path) -> None:
    spec = small_spec(GUESS)
    task = get_task("guess")
    conditions = Conditions.of_evaluation(spec.eval, task, seed=0)
    store, problems = SampleStore(tmp_path / "evals.jsonl"), task.split("test").load()[:4]
    sampler = EngineSampler(tiny, make_engine(spec.rollout, tiny), 0)
    drawn = evaluate(lambda: sampler, conditions, store, problems, 4)
    store.compact(drawn)
    store.drop()
    again = SampleStore(tmp_path / "evals.jsonl")
    assert evaluate(lambda: pytest.fail("drew"), conditions, again, problems, 4) == drawn
    assert {len(turns_of(row)) for row in drawn} & {2, 3, 4}
    assert all(turns_of(row)[-1].end_tokens == row["n_tokens"] for row in drawn)
    assert conditions.as_json(problems)["environment"] == {"version": 1, "max_turns": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [BY_TURN, {"rollout.staleness_steps": 1}, pytest.param(OF_VERIFIERS, marks=NEEDS_VERIFIERS)],
    ids=["by turn", "stale", "verifiers"],
)
def test_a_resumed_cell_draws_and_learns_the_same(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its third step, against one that ran through."""
    plugins.use([], [TASKSETS])
    spec = small_spec(GUESS | settings)
    whole, halves = (new_cell(tmp_path / name) for name in ("whole", "halves"))
    run_cell(whole, spec)
    stopping, gather = Stopping(), Rollouts.gather

    def draw(self: Rollouts, step: int, *rest: Any) -> Batch:
        if step == 3:
            stopping.ask()
        return gather(self, step, *rest)

    with monkeypatch.context() as once, pytest.raises(Interrupted):
        once.setattr(Rollouts, "gather", draw)
        run_cell(halves, spec, stopping)
    run_cell(halves, spec)
    assert whole.digest == halves.digest
    rows, again = rollout_rows(whole), rollout_rows(halves)
    assert rows == again
    if "turns" in spec.reward.parts:
        assert len({row["reward/turns"] for row in rows}) > 1, "there is something to learn"
    turns: list[list[Turn]] = [turns_from_json(row["turns"]) for row in rows]
    assert all(own[-1].end_tokens == len(row["tokens"]) for own, row in zip(turns, rows, strict=True))
    steps = whole.read_steps()
    counts = [[len(own) for own, row in zip(turns, rows, strict=True) if row["step"] == step] for step in range(1, 5)]
    assert [row["turns/mean"] for row in steps] == pytest.approx([fmean(of_step) for of_step in counts])
    assert all(row["turns/environment_tokens"] > 0 for row in steps)


ONE_TURN: dict[str, Any] = {"task.train": "arithmetic"}
SLICES: dict[str, Any] = {"rollout.partial": {"type": "slices", "slice_tokens": 8}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (ONE_TURN | {"rollout.max_turns": 2}, "rollout.max_turns=2"),
    (ONE_TURN | {"reward.parts.turns": 1.0}, "reward.parts.turns"),
    (GUESS | {"rollout.sampler": "given", "rollout.samples_per_prompt": 1}, "rollout.sampler=given"),
    (GUESS | {"algorithm": "dpo"}, "pairs.type=policy"),
    (GUESS | SLICES, "rollout.partial.type=slices"),
    (GUESS | {"teacher.type": "model", "algorithm": "gkd"}, "teacher.type=model"),
    (GUESS | {"reward.parts.pairwise": 1.0}, "reward.parts.pairwise"),
    ({"eval.tasks": ["guess", "arithmetic"], "reward.parts.reward_model": 1.0}, "eval.tasks begins"),
    (GUESS | {"reward.parts.process": 1.0}, "reward.parts.process"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_turns_cannot_be_combined_with_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((RefusedError, ValidationError), match=re.escape(message)):
        small_spec(settings)
