"""Divergences to a teacher and advantages from it, against finite differences, autograd, TRL and sums by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, differences_that_cannot_act, policy_loss, preset, with_overrides
from algorithms.distillation import (
    DistillInLoss,
    DistillInReward,
    divergence,
    divergence_gradient,
    teacher_advantages,
)
from tests.algorithms.cases import GRPO, random_batch, value_and_gradient

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "gkd.json").read_text())
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
TOKENS, VOCABULARY = 5, 7


def logits(seed: int, spread: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(TOKENS, VOCABULARY, generator=generator, dtype=torch.float64)


def of_logits(distill: DistillInLoss, student: Tensor, teacher: Tensor) -> Tensor:
    return divergence(distill, student.log_softmax(-1), teacher.log_softmax(-1))


@settings(max_examples=30)
@given(
    beta=st.floats(0, 1).filter(lambda beta: beta in (0, 1) or 1e-3 < beta < 1 - 1e-3),
    top_k=st.sampled_from((None, 1, 3, VOCABULARY - 1, VOCABULARY, 50)),
    seed=st.integers(0, 1000),
)
def test_the_gradient_is_that_of_the_divergence(beta: float, top_k: int | None, seed: int) -> None:
    distill = DistillInLoss(beta=beta, top_k=top_k)
    student, teacher = logits(seed).requires_grad_(), logits(seed + 1)
    found = of_logits(distill, student, teacher)
    (gradient,) = torch.autograd.grad(found.sum(), student)
    ours = divergence_gradient(distill, student.detach().log_softmax(-1), teacher.log_softmax(-1))
    torch.testing.assert_close(ours, gradient, rtol=1e-7, atol=1e-10)
    assert (found > -1e-12).all()
    if 0 < beta < 1:
        assert (found < math.log(2) + 1e-12).all()


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("beta", BETAS)
def test_a_teacher_that_is_the_student_gives_nothing(beta: float, top_k: int | None) -> None:
    logps = logits(0).log_softmax(-1)
    distill = DistillInLoss(beta=beta, top_k=top_k)
    torch.testing.assert_close(divergence(distill, logps, logps), torch.zeros(TOKENS, dtype=torch.float64))
    gradient = divergence_gradient(distill, logps, logps)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-14)


def test_the_direction_of_the_kl_by_finite_differences() -> None:
    """The forward KL is KL(teacher || student), the reverse one KL(student || teacher), each by sums over tokens."""
    student, teacher = logits(3)[:1], logits(4)[:1]
    p, q = teacher.softmax(-1), student.softmax(-1)
    forward, reverse = (p * (p / q).log()).sum(), (q * (q / p).log()).sum()
    assert abs(forward - reverse) > 0.1
    step = 1e-6
    for beta, expected in ((0.0, forward), (1.0, reverse)):
        distill = DistillInLoss(beta=beta)
        torch.testing.assert_close(of_logits(distill, student, teacher)[0], expected)
        ours = divergence_gradient(distill, student.log_softmax(-1), teacher.log_softmax(-1))[0]
        for token in range(VOCABULARY):
            nudge = torch.zeros_like(student)
            nudge[0, token] = step
            up, down = (of_logits(distill, student + sign * nudge, teacher)[0].item() for sign in (1, -1))
            assert ours[token].item() == pytest.approx((up - down) / (2 * step), abs=1e-8)
    # Mode covering: where the student forgets a token of the teacher's, the forward KL alone is large.
    two = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    one = torch.tensor([[1 - 1e-9, 1e-9]], dtype=torch.float64).log()
    assert divergence(DistillInLoss(beta=0.0), one, two) > 9 > 1 > divergence(DistillInLoss(beta=1.0), one, two)


@pytest.mark.parametrize("entry", GOLDEN["entries"], ids=lambda entry: f"{entry['beta']}-{entry['temperature']}")
def test_the_divergence_is_the_generalised_jsd_of_trl(entry: dict[str, Any]) -> None:
    """TRL 1.16, experimental.gkd: the loss and its gradient by the student's logits."""
    student, teacher = (
        torch.tensor(GOLDEN["inputs"][name], dtype=torch.float64) / entry["temperature"]
        for name in ("student_logits", "teacher_logits")
    )
    mask = torch.tensor(GOLDEN["inputs"]["labels"]) != -100
    distill = DistillInLoss(beta=entry["beta"])
    loss = of_logits(distill, student, teacher)[mask].sum() / mask.sum()
    assert loss.item() == pytest.approx(entry["loss"], abs=1e-12)
    ours = divergence_gradient(distill, student.log_softmax(-1), teacher.log_softmax(-1))
    ours = ours * mask[..., None] / mask.sum() / entry["temperature"]
    torch.testing.assert_close(ours, torch.tensor(entry["gradient"], dtype=torch.float64))


def test_top_k_tells_apart_what_the_teacher_likes_and_no_more() -> None:
    student, teacher = logits(5), logits(6)
    whole = of_logits(DistillInLoss(beta=0.0), student, teacher)
    parts = [of_logits(DistillInLoss(beta=0.0, top_k=k), student, teacher) for k in (1, 3, 6)]
    assert (parts[0] < parts[1]).all()
    assert (parts[1] < parts[2]).all()
    # Only one token is left for the others, which is then itself.
    torch.testing.assert_close(parts[2], whole)
    p, q = (one.softmax(-1) for one in (teacher, student))
    best = p.argmax(-1, keepdim=True)
    a, b = p.gather(-1, best)[:, 0], q.gather(-1, best)[:, 0]
    torch.testing.assert_close(parts[0], a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log())


def test_the_reward_in_the_mean_is_the_reverse_kls_gradient() -> None:
    """Over all tokens that the student may draw: E[A d log p] = -d KL(student || teacher)."""
    student, teacher = logits(7), logits(8)
    logps, teacher_logps = student.log_softmax(-1), teacher.log_softmax(-1)
    distill = DistillInReward()
    advantages = teacher_advantages(distill, logps, teacher_logps, torch.ones(TOKENS, VOCABULARY))
    probabilities = logps.exp()
    scores = torch.eye(VOCABULARY, dtype=torch.float64) - probabilities[:, None]  # d log p_v / d z
    mean = (probabilities[..., None] * advantages[..., None] * scores).sum(1)
    torch.testing.assert_close(mean, -divergence_gradient(DistillInLoss(beta=1.0), logps, teacher_logps))


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_teacher_advantages_are_discounted_sums(discount: float) -> None:
    batch = random_batch(3)
    mask = batch.mask
    teacher_logps = batch.old_logp + 0.3
    teacher_logps[0, 0] -= 2
    found = teacher_advantages(DistillInReward(coef=2.0, discount=discount), batch.old_logp, teacher_logps, mask)
    for row in range(len(mask)):
        for token in range(mask.shape[1]):
            later = [k for k in range(token, mask.shape[1]) if mask[row, k]]
            expected = sum(
                2.0 * discount ** (k - token) * float(teacher_logps[row, k] - batch.old_logp[row, k]) for k in later
            )
            assert found[row, token].item() == pytest.approx(expected if mask[row, token] else 0.0, abs=1e-12)


def test_the_divergence_is_a_term_of_the_loss_under_its_aggregation() -> None:
    batch = random_batch(1)
    assert batch.divergence is not None
    for aggregation, divisor in (("token_mean", batch.mask.sum()), ("seq_mean_token_sum", 8)):
        plain = with_overrides(GRPO, {"aggregation": aggregation})
        distilled = with_overrides(plain, {"distill.where": "loss", "distill.coef": 0.7})
        loss = policy_loss(distilled, batch)
        expected = 0.7 * (batch.divergence * batch.mask).sum() / divisor
        torch.testing.assert_close(loss.value, policy_loss(plain, batch).value + expected)
        assert loss.metrics["loss/distill"] == pytest.approx(expected.item())
        assert loss.metrics["teacher/divergence"] == pytest.approx(batch.divergence[batch.mask].mean().item())


def test_supervised_learning_hears_no_reward() -> None:
    batch = random_batch(2)
    value, gradient = value_and_gradient(preset("sft", Objective), batch)
    torch.testing.assert_close(value, -batch.logp[batch.mask].mean().detach())
    torch.testing.assert_close(gradient, -batch.mask.double() / batch.mask.sum())


@pytest.mark.parametrize(
    ("name", "change", "inert"),
    [
        ("gkd", {"baseline": "group_mean"}, {"baseline", "pass_k"}),
        ("gkd", {"rule.type": "weighted", "ratio": "token"}, {"rule.type", "ratio"}),
        ("gkd", {"distill.beta": 0.9}, set()),
        ("gkd", {"distill.verifier_coef": 1.0}, set()),
        ("gkd", {"aggregation": "seq_mean_token_sum"}, set()),
        (
            "opd",
            {"baseline": "group_mean", "scale": "group_std"},
            {"baseline", "pass_k", "scale", "scale_ddof", "scale_eps"},
        ),
        ("opd", {"distill.discount": 1.0}, set()),
        ("sft", {"baseline": "group_mean"}, {"baseline", "pass_k"}),
        ("sft", {"rule.type": "policy_gradient"}, set()),
    ],
)
def test_the_guard_knows_what_cannot_act_beside_a_teacher(name: str, change: dict[str, Any], inert: set[str]) -> None:
    one = preset(name, Objective)
    assert set(differences_that_cannot_act(one, with_overrides(one, change), 4)) == inert
