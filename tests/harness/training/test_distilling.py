"""The gradient of a teacher, through packed micro-batches and chunks of logits, against a row-by-row computation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms.distillation import DistillInLoss
from harness.config.run_spec import RunSpec
from harness.training.batch import Batch
from harness.training.policy_update import PolicyUpdate
from harness.training.token_scores import OutputHead, token_divergence
from harness.training.update_report import StepReport
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts

FORWARD, REVERSE, MIXED = ({"algorithm": "gkd", "objective.distill.beta": beta} for beta in (0.0, 1.0, 0.3))
REWARD = {"algorithm": "opd"}


def spec(settings: dict[str, Any]) -> RunSpec:
    return small_spec({"train.max_grad_norm": 1e9, "train.reference_rows": 0} | settings)


def teacher() -> PreTrainedModel:
    made = rollouts.model()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return made.requires_grad_(False)


def taught(settings: dict[str, Any], by: PreTrainedModel, **fields: Any) -> tuple[PreTrainedModel, StepReport]:
    policy = rollouts.model()
    batch = replace(rollouts.rollout(policy), **fields)
    report = PolicyUpdate(policy, spec(settings), rollouts.PAD, teacher=by).run(batch, step=1)
    return policy, report


def logits(model: PreTrainedModel, prompt: list[int], tokens: Tensor) -> Tensor:
    """[length, V] what predicts each token, by a forward pass over one row."""
    found: Tensor = model(torch.tensor([prompt + tokens.tolist()])).logits[0, len(prompt) - 1 : -1]
    return found


def by_rows(policy: PreTrainedModel, by: PreTrainedModel, batch: Batch, settings: dict[str, Any]) -> Tensor:
    """The same loss, a row at a time: a mean over all completion tokens."""
    distill = spec(settings).policy_gradient.distill
    prompts = batch.teacher_prompts or batch.sequences.prompts
    parts = []
    for row, prompt in enumerate(batch.sequences.prompts):
        tokens = batch.sequences.completions[row, : int(batch.sequences.lengths[row])]
        student, other = logits(policy, list(prompt), tokens), logits(by, list(prompts[row]), tokens)
        if not isinstance(distill, DistillInLoss):
            own, theirs = (one.log_softmax(-1).gather(1, tokens[:, None])[:, 0] for one in (student, other))
            parts.append(-(theirs - own).detach() * own)
            continue
        s, t = ((one / distill.temperature).log_softmax(-1) for one in (student, other))
        p, q = s.exp(), t.exp()
        if distill.beta in (0, 1):
            divergence = (q * (t - s)).sum(-1) if distill.beta == 0 else (p * (s - t)).sum(-1)
        else:
            mixture = (distill.beta * q + (1 - distill.beta) * p).log()
            of_teacher, of_student = (q * (t - mixture)).sum(-1), (p * (s - mixture)).sum(-1)
            divergence = distill.beta * of_teacher + (1 - distill.beta) * of_student
        parts.append(divergence)
    return torch.cat(parts).mean()


@pytest.mark.parametrize(
    ("settings", "own_prompts"),
    [
        (FORWARD, True),
        (REVERSE | {"train.micro_batch_tokens": 40}, False),
        (MIXED | {"objective.distill.temperature": 1.7, "train.logits_chunk_tokens": 5}, True),
        (REWARD | {"train.micro_batch_tokens": 40}, True),
    ],
    ids=str,
)
def test_the_gradient_of_an_update(settings: dict[str, Any], own_prompts: bool) -> None:
    by = teacher()
    prompts = [[*prompt, 7, 3] for prompt in rollouts.sequences().prompts] if own_prompts else []
    policy, report = taught(settings, by, teacher_prompts=prompts)
    naive = rollouts.model()
    batch = replace(rollouts.rollout(naive), teacher_prompts=prompts)
    loss = by_rows(naive, by, batch, settings)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(rollouts.gradient(policy), rollouts.gradient(naive), rtol=1e-3, atol=1e-6)
    assert report.metrics["grad_norm"] is not None and report.metrics["grad_norm"] > 0.01
    if "opd" not in settings.values():
        assert report.metrics["loss/distill"] == pytest.approx(loss.item(), rel=1e-4)
        assert report.metrics["teacher/divergence"] == pytest.approx(loss.item(), rel=1e-4)
    assert report.teacher_tokens == int(batch.sequences.lengths.sum())


@pytest.mark.parametrize("settings", [FORWARD, MIXED | {"objective.distill.top_k": 3}, REWARD], ids=str)
def test_a_policy_that_is_its_own_teacher_does_not_move(settings: dict[str, Any]) -> None:
    policy, report = taught(settings, rollouts.model())
    assert report.metrics["grad_norm"] == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(rollouts.weights(policy), rollouts.weights(rollouts.model()), rtol=0, atol=1e-7)


@pytest.mark.slow
def test_the_rewards_are_heard_as_much_as_asked() -> None:
    """The verifier's gradient and the teacher's add up, and verifier_coef=0 leaves the teacher's alone."""
    baseline = {"objective.baseline": "group_mean", "objective.scale": "group_std"}
    by = teacher()
    for settings in (MIXED | {"objective.ratio": "none"}, REWARD | {"objective.rule.type": "policy_gradient"}):
        settings = settings | baseline
        alone = rollouts.gradient(taught(settings, by)[0])
        assert torch.equal(
            alone,
            rollouts.gradient(taught({**settings, "objective.baseline": "none", "objective.scale": "none"}, by)[0]),
        )
        both = rollouts.gradient(taught(settings | {"objective.distill.verifier_coef": 0.5}, by)[0])
        plain = baseline | {"objective.rule.type": "policy_gradient", "objective.aggregation": "token_mean"}
        rewarded = rollouts.gradient(taught({"algorithm": "grpo", **plain}, by)[0])
        torch.testing.assert_close(both, alone + 0.5 * rewarded, rtol=1e-3, atol=1e-6)


def test_teacher_tokens_are_counted_in_each_pass_of_the_loss() -> None:
    twice = {"train.epochs": 2, "train.updates_per_rollout": 2}
    tokens = int(rollouts.sequences().lengths.sum())
    assert taught(MIXED | twice, teacher())[1].teacher_tokens == 2 * tokens
    assert taught(REWARD | twice, teacher())[1].teacher_tokens == tokens
    assert taught({"algorithm": "grpo"}, teacher())[1].teacher_tokens == 0
    with pytest.raises(ValueError, match="no teacher is given"):
        PolicyUpdate(rollouts.model(), spec(MIXED), rollouts.PAD)


def test_padded_embeddings_of_one_side_are_left_out() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden, weight = normal(9, 4).requires_grad_(), normal(6, 4).requires_grad_()
    others, wider = normal(9, 5), normal(8, 5)
    distill = DistillInLoss(beta=0.4, top_k=3)
    for chunk in (4, 100):
        found = token_divergence(hidden, OutputHead(weight), others, OutputHead(wider), distill, chunk)
        same = token_divergence(hidden, OutputHead(weight), others, OutputHead(wider[:6]), distill, 100)
        torch.testing.assert_close(found, same)
        gradients = torch.autograd.grad(found.sum(), (hidden, weight))
        torch.testing.assert_close(gradients, torch.autograd.grad(same.sum(), (hidden, weight)))
    narrow = token_divergence(hidden, OutputHead(weight), others, OutputHead(wider[:5]), distill, 4)
    (gradient,) = torch.autograd.grad(narrow.sum(), weight)
    assert (gradient[5] == 0).all() and (gradient[:5] != 0).all()
    assert torch.autograd.gradcheck(
        lambda one, two: token_divergence(one, OutputHead(two), others, OutputHead(wider), distill, 4), (hidden, weight)
    )
