"""The stage that trains a judge, and a cell that is rewarded by it."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.models.start import StartingPoint
from harness.records import CellRecord
from harness.records.files import read_json
from harness.run.cell import CellRun
from harness.run.learning.base import Examples
from harness.run.prompts import training_prompts
from harness.run.stages import find_stage, stages_of_cell
from harness.shelves.learned.generative_judge import GenerativeJudge, JudgeScorer
from harness.shelves.learned.judging import AnswerPair
from harness.shelves.learned.stages import judge as judge_stage
from harness.shelves.learned.stages.judge import BETTER, WORSE, PairQuestion, without_contradictions
from tests.harness.run.small import ignore_progress, small_spec
from tests.harness.run.stages_here import make_stage
from tests.refusals import refuses

OPTIONS = {"prompts": 20, "samples_per_prompt": 4, "cold_start_steps": 3, "steps": 2, "batch_size": 4}
OPTIONS |= {"samples_per_pair": 4}
SETTINGS: dict[str, Any] = {
    "algorithm": "brpo",
    "reward.parts": {"correct": 0.0, "pairwise": 1.0},
    **{f"reward.pairwise.{name}": value for name, value in OPTIONS.items()},
}


def judge_spec(settings: dict[str, Any] | None = None, seed: int = 0) -> RunSpec:
    return small_spec(SETTINGS | (settings or {}), seed)


@pytest.fixture(scope="module")
def made(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "judge"
    told = make_stage("judge", folder, judge_spec({"reward.pairwise.label_noise_rate": 0.4}), tiny)
    assert told == [(step, 25) for step in range(20, 26)]
    return folder


pairs = st.lists(
    st.builds(AnswerPair, st.sampled_from("pq"), st.sampled_from("abc"), st.sampled_from("abc")).filter(
        lambda pair: pair.first != pair.second
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(pairs)
def test_what_is_labelled_both_ways_goes(labels: list[AnswerPair]) -> None:
    kept = without_contradictions(labels)
    assert len(set(kept)) == len(kept)
    assert set(kept) == {pair for pair in labels if not any(other == pair.swapped for other in labels)}


@pytest.mark.parametrize(
    ("scores", "answers"),
    [((8, 2), [True, False]), ((2, 8), [False, True]), ((5, 5), [False] * 2), ((math.nan, math.nan), [False] * 2)],
)
def test_the_reward_of_a_judgement(scores: tuple[float, float], answers: list[bool]) -> None:
    """answers: whether it is right if the first, or the second completion is better."""
    pair = AnswerPair("p", "a", "b")
    assert [PairQuestion(pair, first).is_answered_by(scores) for first in (True, False)] == answers


def test_a_judge_is_a_model_with_a_report(made: Path, tiny: LanguageModel) -> None:
    assert sorted(path.name for path in made.parent.iterdir()) == ["judge"]
    report = read_json(made / "report.json")
    assert report["flipped_pairs"] > 0
    assert 0 < report["pairs"] <= 18 * 4
    assert report["held_out"].keys() == report["after_cold_start"].keys()
    remark = find_stage("judge").remark(made)
    assert remark is not None and f"of {report['pairs']} pairs" in remark
    judge = GenerativeJudge.load(made, judge_spec(), tiny)
    weights = {name: weight.clone() for name, weight in judge.language_model.model.state_dict().items()}
    assert not any(weight.requires_grad for weight in judge.language_model.model.parameters())
    start = load_model("builtin:tiny").model.state_dict()
    assert not all(torch.equal(weights[name], weight) for name, weight in start.items())
    assert all(torch.equal(weight, start[name]) for name, weight in tiny.model.state_dict().items())


def test_demonstrations_show_both_orders_with_the_scores_of_their_label(
    tmp_path: Path, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []

    def keep(model: LanguageModel, recipe: Any, on_step: Any, examples: Any) -> None:
        shown.extend(
            (model.decode(one.prompt), model.decode(one.completion)) for one in (next(examples) for _ in range(200))
        )

    monkeypatch.setattr("harness.training.cold_start.fine_tune", keep)
    monkeypatch.setattr(judge_stage, "_policy_gradient", lambda judge, questions, spec: iter(()))
    make_stage("judge", tmp_path / "judge", judge_spec(), tiny)
    assert read_json(tmp_path / "judge" / "report.json")["train_reward"] is None
    answers = {f"{BETTER},{WORSE}": True, f"{WORSE},{BETTER}": False}
    for prompt, answer in shown:
        problem, first, second = re.fullmatch(r"([^=]*=)(.*)=(.*)=", prompt).groups()  # type: ignore[union-attr]
        right = str(sum(map(int, problem.rstrip("=").split("+"))))
        better, worse = (first, second) if answers[answer] else (second, first)
        assert better.endswith(f"#{right}") and not worse.endswith(f"#{right}")
        assert any(one == (f"{problem}{second}={first}=", next(a for a in answers if a != answer)) for one in shown)


def test_a_model_that_is_never_right_is_refused(tmp_path: Path) -> None:
    spec = judge_spec({"rollout.max_completion_tokens": 8})
    with refuses(RefusedError, "shelves.learned.nothing_to_tell_apart", part="pairwise", n_prompts=18):
        make_stage("judge", tmp_path / "made", spec, load_model("scratch:tiny"))
    assert not any(tmp_path.iterdir())


def test_pairs_that_are_all_labelled_both_ways_are_refused(
    tmp_path: Path, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_stage, "without_contradictions", lambda labels: [])
    with refuses(RefusedError, "shelves.learned.all_labels_contradict"):
        make_stage("judge", tmp_path / "made", judge_spec(), tiny)
    assert not any(tmp_path.iterdir())


def test_an_answer_must_have_room_for_two_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tiny model 4 tokens are enough; another tokenizer may need more."""
    model = load_model("builtin:tiny")
    monkeypatch.setattr(type(model), "encode_completion", lambda self, text: [3] * 9)
    with refuses(RefusedError, "shelves.learned.scores_exceed_limit", max_completion_tokens=8, n_tokens=9):
        make_stage("judge", tmp_path / "made", judge_spec(), model)


def test_cells_wait_for_the_judge_where_completions_are_drawn() -> None:
    assert [stage.name for stage in stages_of_cell(judge_spec())] == ["judge"]
    given_pairs = {"algorithm": "dpo", "pairs.type": "dataset", "pairs.data": "pairs.jsonl"}
    assert "judge" not in [stage.name for stage in stages_of_cell(judge_spec(given_pairs))]


@pytest.mark.slow
def test_a_question_to_a_judge_must_have_room_for_two_completions(tiny: LanguageModel) -> None:
    """The longest sum has 14 characters, and the template 2 more: 16 + 2 x 40 + 32 = 128, the whole context."""
    judged = {"reward.parts": {"correct": 0.0, "pairwise": 1.0}, "rollout.max_completion_tokens": 40}
    stage = find_stage("judge")
    stage.require_model(small_spec({**judged, "reward.pairwise.max_completion_tokens": 32}), tiny)
    exceeds = {"longest": 16, "completion": 40, "answer": 33, "context": 128}
    with refuses(RefusedError, "shelves.learned.question_exceeds_context", **exceeds):
        stage.require_model(small_spec({**judged, "reward.pairwise.max_completion_tokens": 33}), tiny)


class StopError(Exception):
    pass


def run_judged(
    cell: CellRecord, spec: RunSpec, judge_folder: Path, stop_after: int | None = None
) -> list[dict[str, Any]]:
    """A cell that the judge rewards, perhaps stopped after a step; what it recorded of its steps."""
    start = StartingPoint()
    judge = GenerativeJudge.load(judge_folder, spec, start.get(spec, spec.model.source))
    examples = Examples(training_prompts(spec, {}), scorers={"pairwise": JudgeScorer(judge)})

    def on_progress(progress: Any) -> None:
        ignore_progress(progress)
        if stop_after is not None and progress["step"] > stop_after:
            raise StopError

    begin = partial(start.for_training, spec, spec.model.source)
    CellRun(cell, spec, begin, examples, on_progress).run()
    return [{name: value for name, value in row.items() if name != "epoch"} for row in cell.read_steps()]


@pytest.mark.slow
def test_a_cell_that_goes_on_after_a_stop_repeats_the_unbroken_one(made: Path, tmp_path: Path) -> None:
    spec = judge_spec({"train.steps": 3, "eval.every": 0, "eval.problems": 2, "eval.samples": 1})
    unbroken, broken = (CellRecord(tmp_path / name, "judge", 0, "0") for name in ("unbroken", "broken"))
    for cell in (unbroken, broken):
        cell.path.mkdir()
    expected = run_judged(unbroken, spec, made)
    with pytest.raises(StopError):
        run_judged(broken, spec, made, stop_after=2)
    assert run_judged(broken, spec, made) == expected
    assert broken.digest == unbroken.digest
    for row in expected:
        assert row["reward/mean"] == row["reward/pairwise"]
        assert 0 <= row["judge/tie_frac"] <= 1 and "reward/correct" in row
    rollouts = unbroken.read_rollouts(["step", "reward/pairwise", "token/advantage"])
    assert rollouts is not None
    for rewarded in rollouts.to_pylist():
        if rewarded["token/advantage"] is not None:
            assert set(rewarded["token/advantage"]) == {rewarded["reward/pairwise"] or 0.0}
    json.dumps(expected, allow_nan=False)


@pytest.mark.slow
def test_a_judge_learns_to_tell_right_from_wrong(tmp_path: Path, tiny: LanguageModel) -> None:
    """The policy gradient alone makes more judgements right than a short cold start did."""
    few = {"reward.pairwise.prompts": 200, "reward.pairwise.samples_per_prompt": 8}
    steps = {"cold_start_steps": 60, "steps": 40, "batch_size": 32, "samples_per_pair": 8, "learning_rate": 3e-4}
    spec = judge_spec({**few, **{f"reward.pairwise.{name}": value for name, value in steps.items()}})
    rewards: list[float] = []
    original = judge_stage._policy_gradient

    def kept(*given: Any) -> Any:
        for reward in original(*given):
            rewards.append(reward)
            yield reward

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(judge_stage, "_policy_gradient", kept)
        make_stage("judge", tmp_path / "judge", spec, tiny)
    report = read_json(tmp_path / "judge" / "report.json")
    assert report["held_out"]["one_order_accuracy"] > 0.58
    assert report["held_out"]["no_scores_frac"] < 0.05
    assert sum(rewards[-8:]) / 8 > sum(rewards[:8]) / 8 + 0.02
