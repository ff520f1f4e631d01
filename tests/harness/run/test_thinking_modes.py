"""Modes of thinking in cells: what is asked in training and evaluation, budgets, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evals.samples import SampleRow
from evals.tasks import get_task
from harness.config.hashing import evaluation_hash, starting_point_hash, training_hash
from harness.config.run_spec import RunSpec
from harness.engines.base import make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.plan.plan import make_plan
from harness.records.rows import EvaluationRow
from harness.run.data_checks import require_models_and_data
from harness.run.evaluator import Evaluator
from harness.run.learning.rollouts import Rollouts
from harness.run.prompts import prompt_order, training_prompts
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SampleStore
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import load
from tests.refusals import refuses

MODES = {"task.template": "modes_digits", "eval.template": "modes_digits"}
BOTH = MODES | {"task.direct_frac": 0.5}
EVALUATED = ["arithmetic", "direct:arithmetic", "think3:arithmetic"]
SFT = {
    "model.cold_start.type": "sft",
    "model.cold_start.data": "solutions:arithmetic",
    "model.cold_start.template": "modes_digits",
}


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


def test_a_step_asks_in_both_modes(tiny: LanguageModel) -> None:
    spec = small_spec(BOTH | {"rollout.prompts_per_step": 12})
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    rollouts = Rollouts(spec, tiny, make_engine(spec.rollout, tiny))
    batch = rollouts.reward(rollouts.writer.draw(order.draw(1, 12, 0.0), 1, 32), 1)
    asked = [tiny.decode(prompt) for prompt in batch.sequences.prompts]
    flags = {"think": ",", "direct": "#"}
    assert asked == [flags[problem.mode] + problem.problem for problem in batch.problems]
    assert {problem.mode for problem in batch.problems} == {"think", "direct"}
    assert all(len(set(group)) == 1 for group in batch.by_group(asked)), "a group shares its prompt"
    alone = small_spec(MODES | {"rollout.prompts_per_step": 12})
    plain = prompt_order(alone.task, training_prompts(alone, {}), alone.seed).draw(1, 12, 0.0)
    same = Rollouts(alone, tiny, make_engine(alone.rollout, tiny)).writer.draw(plain, 1, 32).sequences.completions
    for row, problem in enumerate(batch.problems):
        if problem.mode == "think":
            n = int(batch.sequences.lengths[row])
            assert same[row, :n].tolist() == batch.sequences.completions[row, :n].tolist()


def evaluated(spec: RunSpec, model: LanguageModel, path: Path) -> dict[str, tuple[EvaluationRow, list[SampleRow]]]:
    evaluator = Evaluator(spec.eval, spec.seed, lambda: EngineSampler.of(spec, model))
    return {row["task"]: (row, rows) for row, rows in evaluator.run(2, SampleStore(path))}


def test_an_evaluation_has_both_modes_and_a_budget(tiny: LanguageModel, tmp_path: Path) -> None:
    spec = small_spec(MODES | {"eval.tasks": EVALUATED})
    found = evaluated(spec, tiny, tmp_path / "evals.jsonl")
    assert [*found] == EVALUATED
    free, cut = found["arithmetic"][1], found["think3:arithmetic"][1]
    stopped = 0
    for one, other in zip(free, cut, strict=True):
        thought, mark, _ = other["text"].partition("wait#")
        if not mark:
            assert other["text"] == one["text"] or "#" in other["text"][:3]
            continue
        stopped += 1
        assert one["text"].startswith(thought) and len(thought) == 3 and "#" not in thought
        assert other["n_tokens"] == 3 + len(other["text"].partition(mark)[2]) + (not other["truncated"])
    assert stopped >= 4
    assert found["think3:arithmetic"][0]["n_problems"] == 8
    again = evaluated(spec, tiny, tmp_path / "evals.jsonl")
    assert again == found, "what is there is not drawn again"
    assert evaluated(spec, tiny, tmp_path / "others.jsonl") == found


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"task.direct_frac": 0.5}, "direct_frac=0.5"),
        ({"eval.tasks": ["arithmetic", "direct:arithmetic"]}, "template plain"),
        (MODES | {"eval.tasks": ["think32:arithmetic"]}, "would be cut"),
        (BOTH | {"rollout.sampler": "given", "rollout.samples_per_prompt": 1, "algorithm": "sft"}, "their steps"),
        (BOTH | {"reward.parts": {"correct": 0.0, "vr_cli": 1.0}}, "the reasoning"),
        (SFT | {"model.cold_start.direct_frac": 0.8, "model.cold_start.stop_frac": 0.3}, "add up to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RefusedError, match=complaint):
        small_spec(settings)


@pytest.mark.slow
def test_a_budget_beyond_the_context_is_refused_before_training(tmp_path: Path) -> None:
    """The longest prompt has 15 tokens, `wait#` 5, the context 128."""
    longest = max(len(problem.problem) for problem in get_task("arithmetic").split("test").load()[:8]) + 1
    room = 128 - longest - 5 - 64
    long = MODES | {"eval.max_completion_tokens": 64}
    load(small_spec(long | {"eval.tasks": [f"think{room}:arithmetic"]}), tmp_path)
    with refuses(RefusedError, "run.thinking_exceeds_context", context_tokens=128, excess_tokens=1):
        load(small_spec(long | {"eval.tasks": [f"think{room + 1}:arithmetic"]}), tmp_path)


@pytest.mark.slow
def test_words_that_the_model_cannot_read_stop_no_thinking(tmp_path: Path) -> None:
    with refuses(RefusedError, "run.stop_not_in_vocabulary"):
        load(small_spec({"eval.tasks": ["think8:arithmetic"]}), tmp_path)


def test_solutions_without_steps_are_refused_with_the_plan(tmp_path: Path) -> None:
    (tmp_path / "short.jsonl").write_text('{"problem": "3+5=", "solution": "#8"}\n')
    arms = "{a: {}, b: {model.cold_start.direct_frac: 0.5}}"
    cold_start = f"{{type: sft, data: {tmp_path / 'short.jsonl'}, template: modes_digits}}"
    path = tmp_path / "question.yaml"
    path.write_text(
        "name: question\nquestion: Does it?\nprofile: tiny\nablate: [model.cold_start.direct_frac]\n"
        f"base: {{algorithm: grpo, model.cold_start: {cold_start}}}\narms: {arms}\nseeds: 3\n"
        "compare: {baseline: a, metric: eval.final.pass@1}\n"
    )
    with refuses(RefusedError, "training.solution_without_steps", end="#"):
        require_models_and_data(make_plan(str(path)))


def test_every_way_of_asking_has_a_hash_of_its_own() -> None:
    """Shares at 0 are those of versions that knew none: `tests/sweeps/test_shipped.py` holds that."""
    tasks = [["arithmetic"], ["direct:arithmetic"], ["think3:arithmetic"], ["think4:arithmetic"]]
    assert len({evaluation_hash(small_spec(MODES | {"eval.tasks": names})) for names in tasks}) == 4
    assert len({training_hash(small_spec(MODES | {"task.direct_frac": share})) for share in (0.0, 0.4, 0.5)}) == 3
    shares = [{}, {"model.cold_start.direct_frac": 0.5}, {"model.cold_start.stop_frac": 0.5}]
    assert len({starting_point_hash(small_spec(SFT | share)) for share in shares}) == 3
    assert starting_point_hash(small_spec(SFT | BOTH)) == starting_point_hash(small_spec(SFT))
