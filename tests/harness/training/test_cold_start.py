from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config.model import SupervisedColdStart
from harness.config.model_source import TINY
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.models.tiny import tiny_tokenizer
from harness.training import cold_start, demonstrations
from harness.training.cold_start import fine_tune, load_recipe
from tests.harness.training import rollouts
from tests.refusals import refuses

DEMONSTRATIONS = [("3+5=", "#8"), ("3+5+9=", "8,17#17"), ("1+1+1+1=", "2,3,wait,2,3,4#4")]


def language_model() -> LanguageModel:
    return LanguageModel(rollouts.model(), tiny_tokenizer())


def write(path: Path, demonstrations: Sequence[tuple[str, str]] = DEMONSTRATIONS) -> Path:
    path.write_text("".join(json.dumps({"problem": p, "solution": s, "id": 7}) + "\n" for p, s in demonstrations))
    return path


def recipe(data: object, **settings: Any) -> SupervisedColdStart:
    return SupervisedColdStart(data=str(data), **{"steps": 1, "batch_size": 3, **settings})


def run(made: SupervisedColdStart) -> tuple[LanguageModel, list[tuple[int, int, float]]]:
    """The random model after the cold start, and what was told of each step."""
    start = language_model()
    told: list[tuple[int, int, float]] = []
    fine_tune(start, made, lambda step, steps, loss: told.append((step, steps, loss)))
    return start, told


def naive_cold_start(made: SupervisedColdStart, factors: list[float]) -> tuple[LanguageModel, list[float], list[float]]:
    """All demonstrations at each step, one by one: the model, and each step's loss and gradient norm before clipping.

    factors: of the learning rate, one a step."""
    start = language_model()
    optimizer = torch.optim.AdamW(
        start.model.parameters(), lr=made.learning_rate, betas=(0.9, 0.95), weight_decay=made.weight_decay
    )
    losses, norms = [], []
    for factor in factors:
        optimizer.zero_grad()
        logits, targets = [], []
        for problem, solution in DEMONSTRATIONS:
            prompt, completion = start.encode(problem), [*start.encode(solution), start.tokenizer.eos_token_id]
            logits.append(start.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1])
            targets.append(torch.tensor(completion))
        loss = torch.nn.functional.cross_entropy(torch.cat(logits), torch.cat(targets))
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(float(rollouts.gradient(start.model).norm()))
        for weight in start.model.parameters():
            if weight.grad is not None:
                weight.grad /= max(1.0, norms[-1])
        for group in optimizer.param_groups:
            group["lr"] = made.learning_rate * factor
        optimizer.step()
        losses.append(float(loss.detach()))
    return start, losses, norms


@pytest.mark.parametrize("micro_batch_tokens", [2048, 12])
def test_agrees_with_a_naive_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch_tokens: int
) -> None:
    """Eight steps, of which the first is all the warm-up; the learning rate falls linearly."""
    monkeypatch.setattr(cold_start, "MICRO_BATCH_TOKENS", micro_batch_tokens)
    made = recipe(write(tmp_path / "a.jsonl"), steps=8, learning_rate=2e-3, weight_decay=0.5)
    got, told = run(made)
    expected, losses, norms = naive_cold_start(made, factors=[1 - done / 8 for done in range(8)])
    assert min(norms) < 1 < max(norms), "Adam does not notice gradients that are all clipped"
    assert [(step, steps) for step, steps, _ in told] == [(step, 8) for step in range(1, 9)]
    assert [loss for _, _, loss in told] == pytest.approx(losses, rel=1e-4)
    moved = (rollouts.weights(expected.model) - rollouts.weights(rollouts.model())).norm()
    assert (rollouts.weights(got.model) - rollouts.weights(expected.model)).norm() < 0.01 * moved


def test_the_loss_of_a_uniform_model_is_the_log_of_its_vocabulary(tmp_path: Path) -> None:
    start = language_model()
    with torch.no_grad():
        start.model.get_output_embeddings().weight.zero_()
    losses: list[float] = []
    fine_tune(start, recipe(write(tmp_path / "a.jsonl")), lambda step, steps, loss: losses.append(loss))
    assert losses == pytest.approx([float(torch.tensor(start.model.config.vocab_size).log())])


class TestDemonstrationsOfAFile:
    def test_come_in_a_new_order_each_epoch(self, tmp_path: Path) -> None:
        rows = [(f"{row}+1=", f"#{row + 1}") for row in range(9)]
        made = recipe(write(tmp_path / "a.jsonl", rows))
        drawn = list(islice(demonstrations.demonstrations(made), 27))
        epochs = [drawn[:9], drawn[9:18], drawn[18:]]
        assert all(sorted(epoch) == rows for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2]
        assert list(islice(demonstrations.demonstrations(made), 27)) == drawn
        other_seed = made.model_copy(update={"seed": 1})
        assert list(islice(demonstrations.demonstrations(other_seed), 9)) != epochs[0]

    def test_that_are_too_long_are_left_out(self, tmp_path: Path) -> None:
        """`8,17#17` is 7 tokens and the end-of-sequence token."""
        made = recipe(write(tmp_path / "a.jsonl"), max_completion_tokens=8)
        start = language_model()
        drawn = list(islice(demonstrations.encoded_demonstrations(start, made), 6))
        assert {start.decode(one.completion) for one in drawn} == {"#8", "8,17#17"}
        assert {start.decode(one.prompt) for one in drawn} == {"3+5=", "3+5+9="}
        assert all(one.completion[-1] == start.tokenizer.eos_token_id for one in drawn)

    @pytest.mark.slow
    def test_none_of_which_fits_is_refused(self, tmp_path: Path) -> None:
        with refuses(RefusedError, "training.no_demonstration_fits", max_completion_tokens=2):
            run(recipe(write(tmp_path / "a.jsonl"), max_completion_tokens=2))

    def test_that_is_missing_is_refused(self, tmp_path: Path) -> None:
        with refuses(RefusedError, "training.no_demonstrations_file", path="nowhere.jsonl"):
            run(recipe(tmp_path / "nowhere.jsonl"))

    def test_that_is_empty_is_refused(self, tmp_path: Path) -> None:
        with refuses(RefusedError, "training.no_demonstrations", path="a.jsonl"):
            run(recipe(write(tmp_path / "a.jsonl", [])))

    @pytest.mark.parametrize("line", ['{"problem": "1+1="', '{"problem": "1+1="}', '["1+1=", "#2"]', "7", ""])
    def test_with_a_bad_line_is_refused_with_its_number(self, tmp_path: Path, line: str) -> None:
        path = write(tmp_path / "a.jsonl", DEMONSTRATIONS[:2])
        path.write_text(path.read_text() + line + "\n")
        with refuses(RefusedError, "training.not_a_demonstration", path="a.jsonl", number=3):
            run(recipe(path))


def test_a_model_whose_weights_would_round_its_steps_away_is_refused(tmp_path: Path) -> None:
    """It has no float32 masters; whoever calls it loads the model in float32."""
    start = language_model()
    start.model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="in float32"):
        fine_tune(start, recipe(write(tmp_path / "a.jsonl")), lambda step, steps, loss: None)


def test_the_recipe_of_the_tiny_checkpoint_loads() -> None:
    recipe = load_recipe(TINY / "recipe.yaml")
    assert recipe.source == "scratch:tiny"
    assert recipe.cold_start.data == "demonstrations:arithmetic"


def test_all_faults_of_a_recipe_are_told_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("sorce: scratch:tiny\ncold_start: {data: a.jsonl, stesp: 3, batch_size: 0, template: plian}\n")
    with pytest.raises(RefusedError) as caught:
        load_recipe(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert len(lines) == 5
    for text in (
        "source has no default",
        "sorce is not a key here",
        "cold_start.stesp is not a key here; did you mean steps",
        "cold_start.batch_size is 0",
        "cold_start.template: unknown template 'plian'",
    ):
        assert any(text in line for line in lines), (text, lines)
