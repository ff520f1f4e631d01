from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evals.tasks import get_task
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.models.tiny import tiny_tokenizer
from harness.random_keys import permutation, random_key
from harness.sampling.conditions import Conditions
from harness.sampling.store import SampleStore
from harness.shelves.learned import reward_model
from harness.shelves.learned.parts import LearnedReward
from harness.shelves.learned.reward_model import RewardModel, train_reward_model
from harness.shelves.learned.stages.reward_model import draw_graded, verdict_pairs, with_label_noise
from harness.training.batch import Batch
from harness.training.sequences import Sequences
from tests.harness.run.small import small_spec
from tests.harness.shelves.learned.conftest import engine_of
from tests.harness.training import rollouts
from tests.refusals import refuses

SEQUENCES = rollouts.sequences()
PAIRS = torch.tensor([[0, 1], [2, 1], [4, 7], [9, 8], [10, 11]])
"""Rows of one prompt each."""


def language_model() -> LanguageModel:
    return LanguageModel(rollouts.model(), tiny_tokenizer())


def with_random_head() -> RewardModel:
    model = RewardModel(language_model())
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return model


def options(**settings: Any) -> LearnedReward:
    return LearnedReward(**{"steps": 4, "batch_size": 2, **settings})


def train(
    made: LearnedReward, sequences: Sequences = SEQUENCES, pairs: Tensor = PAIRS
) -> tuple[RewardModel, list[float]]:
    """The reward model of random weights after its training, and the loss of each step."""
    losses: list[float] = []
    model = train_reward_model(language_model(), sequences, pairs, made, lambda step, steps, loss: losses.append(loss))
    return model, losses


def state_at_the_end(decoder: Any, row: int) -> Tensor:
    """The hidden state at a row's last token, by a forward pass without any padding."""
    tokens = SEQUENCES.completions[row, : SEQUENCES.lengths[row]].tolist()
    hidden: Tensor = decoder(torch.tensor([[*SEQUENCES.prompts[row], *tokens]])).last_hidden_state[0, -1]
    return hidden


def test_a_score_is_read_at_the_last_token_of_the_completion() -> None:
    model = with_random_head()
    model.mean.fill_(0.5)
    model.std.fill_(2.0)
    with torch.no_grad():
        ends = torch.stack([state_at_the_end(model.decoder, row) for row in range(len(SEQUENCES.prompts))])
    expected = (ends @ model.head.weight[0] - 0.5) / 2
    torch.testing.assert_close(model.scores(SEQUENCES), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("budget_tokens", [1, 40])
def test_a_score_does_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch, budget_tokens: int) -> None:
    model = with_random_head()
    model.standardise(SEQUENCES)
    together = model.scores(SEQUENCES)
    monkeypatch.setattr(reward_model, "MICRO_BATCH_TOKENS", budget_tokens)
    torch.testing.assert_close(model.scores(SEQUENCES), together, rtol=0, atol=1e-5)
    alone = torch.cat([model.scores(SEQUENCES.rows(torch.tensor([row]))) for row in range(len(together))])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)
    order = torch.randperm(len(together), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model.scores(SEQUENCES.rows(order)), together[order], rtol=0, atol=1e-5)


def test_equal_completions_of_a_prompt_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rounding cannot part them. What lies in padding does not tell completions apart, the prompt does."""
    scored: list[int] = []
    forward = RewardModel.forward

    def counted(self: RewardModel, sequences: Sequences, rows: Tensor) -> Tensor:
        scored.extend(rows.tolist())
        return forward(self, sequences, rows)

    monkeypatch.setattr(RewardModel, "forward", counted)
    prompts = [[5, 6, 7]] * 5 + [[5, 6, 8]]
    completions = torch.tensor([[9, 4, 0], [9, 4, 3], [9, 4, 8], [9, 5, 0], [9, 4, 0], [9, 4, 0]])
    scores = with_random_head().scores(Sequences(prompts, completions, torch.tensor([2, 2, 3, 2, 2, 2])))
    assert scores[0] == scores[1] == scores[4]
    assert len(set(scores.tolist())) == 4
    assert sorted(scored) == [0, 2, 3, 5]


def naive_training(made: LearnedReward, order: list[int], factors: list[float]) -> tuple[Tensor, list[float]]:
    """Pair by pair: weights of the decoder and of the head at the end, and each step's loss."""
    decoder = rollouts.model().get_decoder()
    head = torch.zeros(decoder.config.hidden_size, requires_grad=True)
    weights = [*decoder.parameters(), head]
    optimizer = torch.optim.AdamW(weights, lr=made.learning_rate, betas=(0.9, 0.95))
    losses = []
    for step, factor in enumerate(factors):
        optimizer.zero_grad()
        terms = []
        for pair in order[step * made.batch_size : (step + 1) * made.batch_size]:
            better, worse = (state_at_the_end(decoder, row) @ head for row in PAIRS[pair].tolist())
            terms.append(torch.log1p(torch.exp(worse - better)))
        loss = torch.stack(terms).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None]).norm()
        for weight in weights:
            if weight.grad is not None:
                weight.grad /= max(1.0, float(norm))
        for group in optimizer.param_groups:
            group["lr"] = made.learning_rate * factor
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.cat([weight.detach().flatten() for weight in weights]), losses


@pytest.mark.parametrize("budget_tokens", [4096, 20])
def test_training_agrees_with_a_naive_implementation(monkeypatch: pytest.MonkeyPatch, budget_tokens: int) -> None:
    """Four steps of two of five pairs: the last ones are of the second epoch, in its own order."""
    monkeypatch.setattr(reward_model, "MICRO_BATCH_TOKENS", budget_tokens)
    made = options(learning_rate=2e-3)
    epochs = [permutation(5, random_key(made.seed, "shuffle", step=epoch)) for epoch in (0, 1)]
    expected, losses = naive_training(made, [*epochs[0], *epochs[1]], factors=[1, 0.75, 0.5, 0.25])
    model, got = train(made)
    assert got == pytest.approx(losses, rel=1e-4)
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)
    trained = torch.cat([weight.flatten() for weight in model.parameters()])
    start = torch.cat([weight.flatten() for weight in RewardModel(language_model()).parameters()])
    assert (trained - expected).norm() < 0.01 * (trained - start).norm()


def test_training_is_fixed_by_its_seed_and_leaves_the_language_model_alone() -> None:
    start = language_model()
    before = rollouts.weights(start.model)

    def trained(seed: int) -> Tensor:
        model = train_reward_model(start, SEQUENCES, PAIRS, options(seed=seed), lambda step, steps, loss: None)
        assert not any(weight.requires_grad or weight.grad is not None for weight in model.parameters())
        return torch.cat([weight.flatten() for weight in model.parameters()])

    one, same, other = trained(0), trained(0), trained(1)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(rollouts.weights(start.model), before)
    assert all(weight.grad is None for weight in start.model.parameters())


def test_standard_scores() -> None:
    model, _ = train(options())
    rows = torch.arange(12)
    raw = model.scores(SEQUENCES)
    for _ in range(2):  # the second time, from standard ones
        model.standardise(SEQUENCES.rows(rows))
        scores = model.scores(SEQUENCES)
        assert float(scores[rows].mean()) == pytest.approx(0, abs=1e-5)
        assert float(scores[rows].std()) == pytest.approx(1, abs=1e-5)
        assert torch.equal(scores.argsort(), raw.argsort())


@pytest.mark.parametrize("head", [0.0, torch.nan])
def test_scores_that_tell_nothing_are_refused(head: float) -> None:
    model = RewardModel(language_model())
    model.head.weight.fill_(head)
    with refuses(RefusedError, "shelves.learned.scores_useless"):
        model.standardise(SEQUENCES)


def test_comes_back_from_disk_bit_for_bit(tmp_path: Path) -> None:
    model, _ = train(options())
    model.standardise(SEQUENCES)
    model.save(tmp_path)
    # Only the shape of the language model that it is loaded for counts.
    other = LanguageModel(load_model("scratch:tiny").model, tiny_tokenizer())
    loaded = RewardModel.load(tmp_path, other)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())
    assert torch.equal(loaded.scores(SEQUENCES), model.scores(SEQUENCES))
    assert not any(weight.requires_grad for weight in loaded.parameters())


@pytest.fixture(scope="module")
def drawn(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """Of 260 problems, 8 completions each."""
    problems = get_task("arithmetic").split("train").load()[:260]
    store = SampleStore(tmp_path_factory.mktemp("drawn") / "samples.jsonl", keeps_tokens=True)
    return draw_graded(problems, 8, Conditions.of_training(small_spec()), tiny, engine_of(tiny), store)


@pytest.mark.slow
def test_learns_to_tell_right_from_wrong_and_less_so_from_noisy_labels(tiny: LanguageModel, drawn: Batch) -> None:
    """Trained on completions of 100 problems, measured on those of the other ones."""
    pairs, held_out = (verdict_pairs(drawn, range(*bounds), seed=0) for bounds in ((0, 100), (100, 260)))

    def accuracy(label_noise_rate: float) -> float:
        labels = with_label_noise(pairs, label_noise_rate, seed=0)
        made = options(steps=16, batch_size=16)
        model = train_reward_model(tiny, drawn.sequences, labels, made, lambda step, steps, loss: None)
        better, worse = model.scores(drawn.sequences)[held_out].T
        return float((better > worse).float().mean())

    clean, noisy = accuracy(0.0), accuracy(0.45)
    assert clean > 0.65
    assert noisy < clean - 0.05


def test_of_a_start_in_bfloat16_it_is_in_float32_and_scores_start_at_zero() -> None:
    """It has no float32 masters, and small steps would be lost on bfloat16 weights."""
    start = LanguageModel(rollouts.model().to(torch.bfloat16), tiny_tokenizer())
    model = RewardModel(start)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    scores = model.scores(SEQUENCES)
    assert scores.dtype == torch.float32 and torch.equal(scores, torch.zeros(len(SEQUENCES.prompts)))
    assert {weight.dtype for weight in start.model.parameters()} == {torch.bfloat16}
