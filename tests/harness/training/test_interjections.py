"""What an environment said within a completion: read by every model, learned from by none, counted nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.training.batch import Batch
from harness.training.policy_update import PolicyUpdate
from harness.training.reference import exact_kl
from harness.training.sequences import Sequences, score_completions
from harness.training.update_report import StepReport
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.causal_models import causal_model
from tests.harness.training.rollouts import GROUPS, SAMPLES
from tests.harness.training.test_policy_update import assert_close_gradient

ROWS = torch.arange(6)
WAYS = ("prompts computed once", "padded rows")


def policy_of(way: str) -> PreTrainedModel:
    made = causal_model("Llama")
    if way == "padded rows":
        made.set_attn_implementation("eager")
    return made


def whole_line(made: Sequences, row: int) -> tuple[list[int], list[int]]:
    """Prompt, completion and interjections as one list of tokens, and where the completion's own tokens stand in it:
    put together a token at a time."""
    line, own = list(made.prompts[row]), []
    said = dict(made.interjections[row])
    for number, token in enumerate(made.completions[row, : int(made.lengths[row])].tolist()):
        line += said.get(number, [])
        own.append(len(line))
        line.append(token)
    return line, own


def naive_logps(model: PreTrainedModel, made: Sequences, row: int) -> Tensor:
    """Log-probs of a completion's own tokens, given all that stands before each of them."""
    line, own = whole_line(made, row)
    logps = torch.log_softmax(model(torch.tensor([line])).logits[0], -1)
    return torch.stack([logps[place - 1, line[place]] for place in own])


@pytest.mark.parametrize("way", WAYS)
def test_log_probs_gradient_and_exact_kl_are_those_of_a_naive_pass(way: str) -> None:
    made, weights = rollouts.interrupted(rollouts.sequences()), torch.linspace(-1, 1, len(ROWS))
    expected, expected_model = [], policy_of(way)
    for row in ROWS.tolist():
        expected.append(naive_logps(expected_model, made, row))
        (weights[row] * expected[-1].sum()).backward()  # type: ignore[no-untyped-call]
    model = policy_of(way)
    logps, _ = score_completions(model, made, ROWS, 1.0, rollouts.PAD)
    for row, one in enumerate(expected):
        torch.testing.assert_close(logps[row, : len(one)], one, atol=1e-5, rtol=1e-5)
        assert (logps[row, len(one) :] == 0).all()
    (weights[:, None] * logps).sum().backward()  # type: ignore[no-untyped-call]
    assert_close_gradient(rollouts.gradient(model), rollouts.gradient(expected_model))
    other = causal_model("Qwen2")
    kl = exact_kl(model, other, made, ROWS, 1.0, rollouts.PAD)
    line, own = whole_line(made, 2)
    with torch.no_grad():
        both = [torch.log_softmax(one(torch.tensor([line])).logits[0], -1) for one in (model, other)]
    at = torch.tensor(own) - 1
    torch.testing.assert_close(
        kl[2, : len(own)], (both[0].exp() * (both[0] - both[1])).sum(1)[at], atol=1e-4, rtol=1e-4
    )


def test_the_gradient_where_an_environments_token_is_predicted_is_exactly_zero() -> None:
    """At the last hidden states, from which logits alone are made: where an own token is predicted and nowhere else."""
    made, model = rollouts.interrupted(rollouts.sequences()), policy_of("padded rows")
    seen: dict[str, Tensor] = {}

    def keep(decoder: object, inputs: object, outputs: Any) -> None:
        if outputs.last_hidden_state.requires_grad:
            outputs.last_hidden_state.register_hook(lambda gradient: seen.setdefault("gradient", gradient))

    hook = model.get_decoder().register_forward_hook(keep)
    logps, _ = score_completions(model, made, ROWS, 1.0, rollouts.PAD)
    hook.remove()
    logps.sum().backward()  # type: ignore[no-untyped-call]
    width = max(len(made.prompts[row]) for row in ROWS.tolist())
    predicting = torch.zeros(seen["gradient"].shape[:2], dtype=torch.bool)
    for row in ROWS.tolist():
        own = torch.tensor(whole_line(made, row)[1])
        predicting[row, own - len(made.prompts[row]) + width - 1] = True
    assert (seen["gradient"][~predicting] == 0).all()
    assert (seen["gradient"][predicting].abs().sum(1) > 0).all()


def batch(policy: PreTrainedModel) -> Batch:
    made = rollouts.rollout(policy)
    sequences = rollouts.interrupted(made.sequences)
    logps = torch.zeros(made.sampler_logps.shape)
    with torch.no_grad():
        for row in range(len(made)):
            logps[row, : int(sequences.lengths[row])] = naive_logps(policy, sequences, row)
    return replace(made, sequences=sequences, sampler_logps=logps)


def trained(settings: dict[str, Any]) -> tuple[PreTrainedModel, StepReport]:
    policy = rollouts.model()
    spec = small_spec({"train.max_grad_norm": 1e9, **settings})
    return policy, PolicyUpdate(policy, spec, rollouts.PAD).run(batch(policy), step=1)


def test_a_training_step_is_a_naive_one_over_the_policys_own_tokens() -> None:
    """GRPO without KL, row by row; numbers of the report are of own tokens too."""
    policy, report = trained({})
    expected = rollouts.model()
    made = batch(expected)
    rewards = made.rewards.view(GROUPS, SAMPLES)
    scale = rewards.std(1, keepdim=True) + 1e-6
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / scale).flatten().tolist()
    for row, advantage in enumerate(advantages):
        logps = naive_logps(expected, made.sequences, row)
        (-(logps.exp() / logps.exp().detach()).mean() * advantage / len(advantages)).backward()
    assert_close_gradient(rollouts.gradient(policy), rollouts.gradient(expected))
    acting = torch.tensor([advantage != 0 for advantage in advantages])
    assert report.trained_tokens == int(made.sequences.lengths[acting].sum())
    assert report.metrics["tokens_in_loss"] == report.trained_tokens
    assert report.metrics["mismatch/k1"] == pytest.approx(0, abs=1e-5), "the trainer's log-probs are the sampler's"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"objective.kl.where": "loss", "objective.kl.beta": 0.5, "train.epochs": 2}])
def test_a_step_does_not_depend_on_how_rows_are_cut_into_passes(settings: dict[str, Any]) -> None:
    one, _ = trained({"train.micro_batch_tokens": 4096, **settings})
    many, report = trained({"train.micro_batch_tokens": 24, **settings})
    assert report.micro_batch_tokens == 24
    assert_close_gradient(rollouts.gradient(many), rollouts.gradient(one))


@pytest.mark.parametrize("shared", [True, False])
def test_budgets_of_a_pass_count_what_is_read(shared: bool) -> None:
    """Against the lines of tokens: prompts once or padded, and the last token of a line, which predicts nothing."""
    made, rows = rollouts.interrupted(rollouts.sequences()), torch.arange(GROUPS * SAMPLES)
    lines = [len(whole_line(made, row)[0]) for row in rows.tolist()]
    prompts = [len(prompt) for prompt in made.prompts]
    read = [line - prompt for line, prompt in zip(lines, prompts, strict=True)]
    alone = sum(prompts[::SAMPLES]) + sum(read) - len(rows)
    padded = len(rows) * (max(prompts) + max(read) - 1)
    assert made.pass_tokens(rows, shared) == ((alone, 0) if shared else (padded, padded - sum(lines) + len(rows)))
    budget = max(lines) + 5
    for some in (micro.tolist() for micro in made.micro_batches(rows, budget, shared)):
        together = sum(read[row] for row in some) + sum(
            {made.distinct_prompts.of_row[row].item(): prompts[row] for row in some}.values()
        )
        wide = len(some) * (max(prompts[row] for row in some) + max(read[row] for row in some))
        assert len(some) == 1 or (together if shared else wide) <= budget


def test_chosen_and_joined_rows_keep_their_interjections() -> None:
    made = rollouts.interrupted(rollouts.sequences())
    some, plain = made.rows(torch.tensor([5, 2])), rollouts.sequences(seed=1)
    assert some.interjections == [made.interjections[5], made.interjections[2]]
    both = Sequences.joined([plain, some])
    assert list(both.interjections) == [()] * len(plain.prompts) + list(some.interjections)
    assert Sequences.joined([plain, plain]).interjections == []
    twice = Sequences.joined([some, replace(some, interjections=[[], []]), some])
    assert twice.distinct_rows[0].tolist() == [0, 1, 2, 3]
