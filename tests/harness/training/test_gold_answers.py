"""What models say of gold texts, against passes over single rows; and the supervised term, against the same and against
finite differences."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from evals.tasks.base import Problem
from harness.models.language_model import LanguageModel, load_model
from harness.run.learning.base import Examples
from harness.run.learning.rollouts import Rollouts
from harness.training.batch import Batch, filter_rows
from harness.training.gold_answers import GoldAnswers, GoldScorer
from harness.training.policy_update import PolicyUpdate
from harness.training.sequences import Sequences
from harness.training.update_report import rollout_metrics
from tests.harness.rewards.attempts import attempt
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, SAMPLES

TEXTS = ["8,17#17", "8,18#18", "#17", "8,17#17", "5,12#12", "5,12", "#9", "5,11,wait,5,12#12"]
"""Four samples each of two sums; the sixth ends without an answer."""
PROBLEMS = [Problem("3+5+9", "3+5+9=", "17", "8,17#17"), Problem("1+4+7", "1+4+7=", "12", "5,12#12")]
JEPO: dict[str, Any] = {"reward.parts": {"correct": 0.0, "jepo": 1.0}}
VR_CLI: dict[str, Any] = {"reward.parts": {"correct": 0.0, "vr_cli": 1.0}}


@cache
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


def drawn() -> Batch:
    problems = [problem for problem in PROBLEMS for _ in range(4)]
    completions = [tiny().encode_completion(text) for text in TEXTS]
    sequences = Sequences.of([tiny().encode(problem.problem) for problem in problems], completions)
    return Batch(
        sequences=sequences,
        sampler_logps=torch.zeros(sequences.completions.shape),
        truncated=torch.zeros(len(TEXTS), dtype=torch.bool),
        groups=torch.tensor([0] * 4 + [1] * 4),
        max_completion_tokens=32,
        problems=problems,
    )


def rewarded(settings: dict[str, Any]) -> Batch:
    spec = small_spec(settings)
    generator = tiny() if "generator" in spec.reward.gold_scorers else None
    return Rollouts(spec, tiny(), cast(Any, None), Examples(generator=generator)).reward(drawn(), 1)


@torch.no_grad()
def naive_logp(before: str, text: str, temperature: float = 1.0) -> float:
    """By one pass without padding over all tokens; the text is the end."""
    context, wanted = tiny().encode(before), tiny().encode_completion(text)
    logits = tiny().model(torch.tensor([context + wanted])).logits[0, len(context) - 1 : -1]
    return float((logits / temperature).log_softmax(-1).gather(1, torch.tensor(wanted)[:, None]).sum())


def contexts() -> list[tuple[str, str, str]]:
    """For each completion its prompt, the reasoning with the mark, and the gold answer."""
    found = []
    for row, text in enumerate(TEXTS):
        problem = PROBLEMS[row // 4]
        reasoning = text[: text.index("#") + 1] if "#" in text else f"{text}#"
        found.append((problem.problem, reasoning, problem.answer))
    return found


def test_the_policys_likelihood_of_the_gold_answer() -> None:
    """At the temperature at which it draws."""
    batch = rewarded({**JEPO, "rollout.temperature": 0.7})
    expected = [naive_logp(prompt + reasoning, gold, 0.7) for prompt, reasoning, gold in contexts()]
    assert batch.reward_columns["reward/jepo"] == pytest.approx(expected, abs=1e-4)
    assert batch.rewards.tolist() == pytest.approx(expected, abs=1e-4)
    assert batch.reward_columns["reward/jepo"][0] == batch.reward_columns["reward/jepo"][3], "equal rows tie"
    metrics = rollout_metrics(batch)
    assert metrics["gold/answer_logp"] == pytest.approx(sum(expected) / 8, abs=1e-4)
    multi = sum(math.log(sum(map(math.exp, expected[at : at + 4])) / 4) for at in (0, 4)) / 2
    assert metrics["gold/multi_sample_bound"] == pytest.approx(multi, abs=1e-4)
    assert metrics["reward/correct"] == pytest.approx(5 / 8), "the truth stands beside the proxy"


def test_the_frozen_models_improvement() -> None:
    batch = rewarded(VR_CLI)
    expected = []
    for prompt, reasoning, gold in contexts():
        without, behind = naive_logp(f"{prompt}#", gold), naive_logp(prompt + reasoning, gold)
        perplexities = math.exp(-without / 3), math.exp(-behind / 3)
        expected.append((perplexities[0] - perplexities[1]) / perplexities[0])
    assert batch.reward_columns["reward/vr_cli"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert batch.reward_columns["reward/vr_cli"][2] == 0, "no reasoning, no improvement"
    assert rollout_metrics(batch)["gold/improvement"] == pytest.approx(sum(expected) / 8, rel=1e-4)


def test_the_frozen_models_improvement_of_a_solution() -> None:
    batch = rewarded({**VR_CLI, "reward.vr_cli.gold": "solution"})
    expected = []
    for row, text in enumerate(TEXTS):
        problem = PROBLEMS[row // 4]
        reasoning, solution = text.partition("#")[0], cast(str, problem.solution)
        n = len(solution) + 1
        before, after = naive_logp(problem.problem, solution), naive_logp(problem.problem + reasoning, solution)
        expected.append(1 - math.exp((before - after) / n))
    assert batch.reward_columns["reward/vr_cli"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("settings", [JEPO, VR_CLI])
def test_tokens_behind_the_mark_stay_out_of_the_loss(settings: dict[str, Any]) -> None:
    objective = small_spec().policy_gradient
    kept = filter_rows(objective, rewarded(settings)).loss_mask
    assert kept.sum(1).tolist() == [len(text.partition("#")[0]) + 1 for text in TEXTS]
    both = {"reward.parts": {**settings["reward.parts"], "correct": 1.0}}
    mask = filter_rows(objective, rewarded(both)).loss_mask
    assert torch.equal(mask, drawn().sequences.mask), "the verdict is about the answer too"


def test_a_group_of_rows_keeps_its_answers() -> None:
    batch = filter_rows(small_spec().policy_gradient, rewarded(JEPO))
    assert batch.answers is not None
    assert batch.answers.weights.tolist() == [1.0] * 8
    some = batch.rows(torch.tensor([6, 1]))
    assert some.answers is not None
    assert some.answers.sequences.prompts == [batch.answers.sequences.prompts[row] for row in (6, 1)]
    twice = Batch.joined([rewarded(JEPO), replace(rewarded(JEPO), groups=torch.tensor([2] * 4 + [3] * 4))])
    assert twice.answers is not None and len(twice.answers.weights) == 16
    assert rewarded({**JEPO, "reward.jepo.supervised": 0.0}).answers is None
    assert rewarded({"reward.parts": {"jepo": 0.0}}).answers is None


def test_a_token_that_reaches_into_the_answer_is_written_anew() -> None:
    """A token `5#1` holds the end of the reasoning, the mark and the begin of the answer."""
    vocabulary = {token: index for index, token in enumerate(["<eos>", "<unk>", "5#1", *"0123456789,+=#"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("5#1|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    policy = LanguageModel(
        cast(Any, None), PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")
    )
    problem = Problem("9+6", "9+6=", "15")
    drawn_tokens = [*policy.encode_text("8,15#15"), 0]
    assert len(drawn_tokens) == 6
    sequences = Sequences.of([policy.encode_text("9+6=")], [drawn_tokens])
    scorer = GoldScorer(small_spec(JEPO), policy, None)
    one = attempt("8,15#15", problem=problem, n_tokens=6)
    ends = scorer._token_ends(sequences, 0, one)
    assert ends == [1, 2, 3, 6, 7, 7]
    read = scorer._policy_rows(sequences, [one], [ends])
    assert policy.decode(read.prompts[0]) == "9+6=8,15#"
    assert read.prompts[0][-5:] == [vocabulary[token] for token in "8,15#"]
    assert read.completions.tolist() == [[vocabulary["1"], vocabulary["5"], 0]]
    assert scorer._reasoning_tokens([one], [ends]).tolist() == [4], "with the token that completes the mark"


# The supervised term.

N = GROUPS * SAMPLES


def gold() -> GoldAnswers:
    generator = torch.Generator().manual_seed(9)
    return GoldAnswers(rollouts.sequences(seed=5), torch.rand(N, generator=generator) + 0.5)


def gradient_of(answers: GoldAnswers | None, settings: dict[str, Any], rewards: list[float] | None = None) -> Tensor:
    policy = rollouts.model()
    batch = replace(rollouts.rollout(policy, rewards), answers=answers)
    spec = small_spec({"train.max_grad_norm": 1e9, "train.learning_rate": 1e-3} | settings)
    PolicyUpdate(policy, spec, rollouts.PAD).run(batch, step=1)
    return rollouts.gradient(policy)


def naive_term(policy: Any, answers: GoldAnswers, aggregation: str, lengths: Tensor) -> Tensor:
    """- sum of weight x log-likelihood, divided as the tokens of the row's completion are."""
    by_group = lengths.view(GROUPS, SAMPLES).sum(1).repeat_interleave(SAMPLES)
    divisors = {
        "seq_mean_token_mean": N * lengths,
        "seq_mean_token_sum": torch.full((N,), N),
        "group_token_mean": GROUPS * by_group,
    }[aggregation]
    logps = torch.stack([rollouts.completion_logps(policy, answers.sequences, row).sum() for row in range(N)])
    return -(answers.weights / divisors * logps).sum()


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "seq_mean_token_sum", "group_token_mean"])
def test_the_supervised_term_adds_its_gradient(aggregation: str) -> None:
    """Also for completions without an advantage: those of the second group."""
    settings = {"objective.aggregation": aggregation}
    found = gradient_of(gold(), settings) - gradient_of(None, settings)
    policy = rollouts.model()
    lengths = rollouts.rollout(policy).sequences.lengths
    naive_term(policy, gold(), aggregation, lengths).backward()  # type: ignore[no-untyped-call]
    expected = rollouts.gradient(policy)
    assert (found - expected).norm() < 1e-3 * expected.norm()


def test_micro_batches_do_not_change_the_supervised_term() -> None:
    settings = {"train.updates_per_rollout": 2, "objective.aggregation": "token_mean"}
    whole = gradient_of(gold(), {**settings, "train.micro_batch_tokens": 100_000})
    split = gradient_of(gold(), {**settings, "train.micro_batch_tokens": 30})
    assert (split - whole).norm() < 1e-3 * whole.norm()


def test_the_supervised_term_agrees_with_finite_differences() -> None:
    """Without any advantage the whole gradient is that of the term."""
    equal = [1.0] * N
    gradient = gradient_of(gold(), {}, equal)
    lengths = rollouts.rollout(rollouts.model()).sequences.lengths
    # Half random, half along the gradient: across a wholly random direction the loss is almost level.
    random = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction = random / random.norm() + gradient.double() / gradient.norm()

    @torch.no_grad()
    def loss(distance: float) -> float:
        policy = rollouts.model().double()
        weights = list(policy.parameters())
        for weight, part in zip(weights, direction.split([one.numel() for one in weights]), strict=True):
            weight += distance * part.view(weight.shape)
        return float(naive_term(policy, gold(), "seq_mean_token_mean", lengths))

    step = 1e-5
    slope = (loss(step) - loss(-step)) / (2 * step)
    assert float(gradient.double() @ direction) == pytest.approx(slope, rel=1e-3)


def test_the_supervised_term_is_recorded() -> None:
    policy = rollouts.model()
    batch = replace(rollouts.rollout(policy), answers=gold())
    trained = PolicyUpdate(policy, small_spec({"train.max_grad_norm": 1e9}), rollouts.PAD)
    expected = float(naive_term(rollouts.model(), gold(), "seq_mean_token_mean", batch.sequences.lengths).detach())
    metrics = trained.run(batch, step=1).metrics
    assert metrics["loss/answer"] == pytest.approx(expected, rel=1e-4)
    assert metrics["loss"] == pytest.approx(expected + float(metrics["loss/policy"] or 0), rel=1e-4)
    empty = trained.run(batch.rows(torch.tensor([], dtype=torch.long)), step=2).metrics
    assert empty.keys() == metrics.keys()
    assert empty["loss/answer"] is None
