from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evals.grading import Verdict
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.records.files import read_json
from harness.rewards import Attempt
from harness.sampling.conditions import Conditions
from harness.sampling.store import SampleStore
from harness.shelves.learned.parts import LearnedReward
from harness.shelves.learned.reward_model import RewardModel, train_reward_model
from harness.shelves.learned.stages import reward_model as reward_model_stage
from harness.shelves.learned.stages.reward_model import draw_graded, labelled_prompts, verdict_pairs, with_label_noise
from harness.training.batch import Batch
from harness.training.sequences import Sequences
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import make_stage
from tests.harness.shelves.learned.conftest import engine_of
from tests.refusals import refuses

SETTINGS = {
    "reward.parts": {"correct": 0.0, "reward_model": 1.0},
    "reward.reward_model.prompts": 20,
    "reward.reward_model.samples_per_prompt": 4,
    "reward.reward_model.steps": 3,
    "reward.reward_model.batch_size": 4,
}
RIGHT, *REST = VERDICTS = [
    Verdict(reason == "match", None if reason == "unparsed" else "1", reason)
    for reason in ("match", "mismatch", "unparsed", "timeout", "crash")
]


def stage_spec(settings: dict[str, Any] | None = None, seed: int = 0) -> RunSpec:
    return small_spec(SETTINGS | (settings or {}), seed)


def make(folder: Path, model: LanguageModel, spec: RunSpec) -> list[tuple[int, int]]:
    return make_stage("reward_model", folder, spec, model, engine_of(model))


def drawn_for(spec: RunSpec, model: LanguageModel) -> Batch:
    samples, conditions = spec.reward.of(LearnedReward).samples_per_prompt, Conditions.of_training(spec)
    with TemporaryDirectory() as folder:
        store = SampleStore(Path(folder) / "samples.jsonl", keeps_tokens=True)
        return draw_graded(labelled_prompts(spec, LearnedReward), samples, conditions, model, engine_of(model), store)


def accuracy(scores: Tensor, pairs: Tensor) -> float:
    return sum(bool(scores[better] > scores[worse]) for better, worse in pairs.tolist()) / len(pairs)


def test_writes_a_model_with_a_report_of_its_quality(
    tmp_path: Path, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on noisy labels of 18 prompts, measured by the true ones."""
    labels: list[Tensor] = []
    losses: list[float] = []

    def training(model: LanguageModel, rows: Sequences, pairs: Tensor, options: Any, on_step: Any) -> RewardModel:
        labels.append(pairs)

        def also_here(step: int, steps: int, loss: float) -> None:
            losses.append(loss)
            on_step(step, steps, loss)

        return train_reward_model(model, rows, pairs, options, also_here)

    monkeypatch.setattr("harness.shelves.learned.reward_model.train_reward_model", training)
    spec = stage_spec({"reward.reward_model.label_noise_rate": 0.4})
    told = make(tmp_path / "made", tiny, spec)
    assert told == [(20, 23), (21, 23), (22, 23), (23, 23)]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]

    drawn, report = drawn_for(spec, tiny), read_json(tmp_path / "made" / "report.json")
    pairs, held_out = verdict_pairs(drawn, range(18), seed=0), verdict_pairs(drawn, range(18, 20), seed=0)
    scores = RewardModel.load(tmp_path / "made", tiny).scores(drawn.sequences)
    assert float(scores[: 18 * 4].mean()) == pytest.approx(0, abs=1e-5)
    assert float(scores[: 18 * 4].std()) == pytest.approx(1, abs=1e-5)
    assert torch.equal(labels[0], with_label_noise(pairs, 0.4, seed=0))
    flipped = sum(one != other for one, other in zip(labels[0].tolist(), pairs.tolist(), strict=True))
    assert 0 < flipped < len(pairs)
    assert len(held_out) > 0
    assert report == {
        "prompts": 20,
        "samples_per_prompt": 4,
        "correct_frac": pytest.approx(drawn.correct.sum().item() / 80),
        "pairs": len(pairs),
        "label_noise_rate": 0.4,
        "flipped_pairs": flipped,
        "train_loss": losses[-1],
        "train_accuracy": pytest.approx(accuracy(scores, pairs)),
        "held_out_pairs": len(held_out),
        "held_out_accuracy": pytest.approx(accuracy(scores, held_out)),
    }


@pytest.mark.slow
def test_the_seed_of_a_cell_does_not_count_but_the_reward_models_does(
    tmp_path: Path, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without held-out pairs, as where all completions of the held-out prompts are right: then no accuracy is told."""
    monkeypatch.setattr(reward_model_stage, "HELD_OUT_FRAC", 0.0)
    specs = {"a": stage_spec(), "b": stage_spec(seed=1), "c": stage_spec({"reward.reward_model.seed": 1})}
    made = {}
    for name, spec in specs.items():
        make(tmp_path / name, tiny, spec)
        made[name] = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    assert made["a"] == made["b"]
    assert made["a"] != made["c"]
    report = read_json(tmp_path / "a" / "report.json")
    assert report["train_accuracy"] > 0
    assert (report["held_out_pairs"], report["held_out_accuracy"]) == (0, None)


def test_a_model_that_is_never_right_is_refused(tmp_path: Path) -> None:
    with refuses(RefusedError, "shelves.learned.nothing_to_tell_apart", n_prompts=18, samples_per_prompt=4):
        make(tmp_path / "made", load_model("scratch:tiny"), stage_spec({"rollout.max_completion_tokens": 8}))
    assert not any(tmp_path.iterdir())


def test_more_prompts_than_there_are_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = get_task("arithmetic").split("train")
    problems = source.load()[:19]
    monkeypatch.setattr(type(source), "load", lambda self: problems)
    with refuses(RefusedError, "shelves.learned.too_many_labelled_prompts", wanted=20, n_problems=19):
        labelled_prompts(stage_spec(), LearnedReward)
    chosen = labelled_prompts(stage_spec({"reward.reward_model.prompts": 19}), LearnedReward)
    assert sorted(problem.id for problem in chosen) == sorted(problem.id for problem in problems)
    assert list(chosen) != problems
    assert labelled_prompts(stage_spec({"reward.reward_model.prompts": 12}, seed=3), LearnedReward) == chosen[:12]


def tried(samples: int, verdicts: list[Verdict]) -> Batch:
    """Completions of one token with these verdicts, so many of each problem."""
    problems = [Problem(str(row // samples), "", "1") for row in range(len(verdicts))]
    drawn = Completions.of([[0]] * len(verdicts), [[0.0]] * len(verdicts), [False] * len(verdicts), 0)
    attempts = [
        Attempt(problem, row % samples, "", 1, False, verdict, 0.0)
        for row, (problem, verdict) in enumerate(zip(problems, verdicts, strict=True))
    ]
    batch = Batch.of_completions([[0]] * (len(verdicts) // samples), drawn, 0, 1)
    return replace(batch, problems=problems, attempts=attempts)


@st.composite
def graded(draw: st.DrawFn) -> Batch:
    samples, problems = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    verdicts = draw(st.lists(st.sampled_from(VERDICTS), min_size=samples * problems, max_size=samples * problems))
    return tried(samples, verdicts)


@settings(max_examples=40)
@given(graded(), st.integers(0, 3))
def test_pairs_are_of_a_right_and_a_wrong_completion_of_one_problem(drawn: Batch, seed: int) -> None:
    groups, verdicts = drawn.by_group(range(len(drawn))), [one.verdict for one in drawn.attempts]
    pairs = [tuple(pair) for pair in verdict_pairs(drawn, range(len(groups)), seed).tolist()]
    assert len(set(pairs)) == len(pairs)
    for better, worse in pairs:
        assert drawn.groups[better] == drawn.groups[worse]
        assert verdicts[better].correct
        assert verdicts[worse].reason in ("mismatch", "unparsed")
    for number, rows in enumerate(groups):
        right = sum(verdicts[row].correct for row in rows)
        wrong = sum(verdicts[row].reason in ("mismatch", "unparsed") for row in rows)
        assert sum(better in rows for better, _ in pairs) == min(4, right * wrong)
        of_one = verdict_pairs(drawn, [number], seed).tolist()
        assert of_one == [list(pair) for pair in pairs if pair[0] in rows]


def test_which_pairs_of_a_problem_are_taken_is_drawn() -> None:
    drawn = tried(8, [RIGHT] * 4 + [REST[0]] * 4)
    taken = {tuple(map(tuple, verdict_pairs(drawn, [0], seed).tolist())) for seed in range(20)}
    assert len(taken) > 15


MANY = torch.arange(4000).view(-1, 2)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.45])
def test_label_noise_turns_a_share_of_the_pairs_round(rate: float) -> None:
    turned = with_label_noise(MANY, rate, seed=0)
    assert torch.equal(turned.sort(1).values, MANY)
    share = float((turned != MANY).any(1).float().mean())
    assert share == pytest.approx(rate, abs=0.04) and (share == 0) == (rate == 0)
    more, other = (with_label_noise(MANY, *options)[:, 0] != MANY[:, 0] for options in ((rate + 0.2, 0), (rate, 1)))
    assert bool((more | (turned == MANY)[:, 0]).all()), "a higher rate turns what a lower one does"
    assert rate == 0 or not torch.equal(turned[:, 0] != MANY[:, 0], other)
