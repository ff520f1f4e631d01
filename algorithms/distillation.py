"""`distill`: learning from a teacher's next-token distribution, by a term of the loss or a reward for every token.

S is the policy (the student) and T the teacher. The generalised Jensen-Shannon divergence (GKD, 2306.13649, section 2)
at one token is

    D = beta KL(T || M) + (1 - beta) KL(S || M),   M = beta T + (1 - beta) S

By convention D is the forward KL(T || S) at beta = 0 and the reverse KL(S || T) at beta = 1. Its gradient with respect
to the student's logit z_v is W_v - S_v sum_u W_u, where W_v = S_v dD / dS_v. A multiple of S_v may be left out of W_v,
because it cancels:

    W = -T at beta = 0;   S log(S / M) (1 - beta) between;   S log(S / T) at beta = 1

The gradient is 0 where T = S. With `top_k` there are k + 1 outcomes: the teacher's k likeliest tokens, and one that
stands for all others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from harness.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

LEAST_LOGP = -1e4
"""Used in place of log 0. It is finite, so that 0 log 0 is 0 and not NaN."""


class NoDistillation(Settings):
    """The objective uses no teacher."""

    where: Literal["none"] = "none"


class _FromTeacher(Settings):
    coef: float = Field(default=1.0, gt=0, description="weight of the teacher's term; default: 1, as in most trainers")
    verifier_coef: float = Field(
        default=1.0,
        ge=0,
        description="weight of the advantages from rewards; 0: learn from the teacher alone; default: 1",
    )


class DistillInReward(_FromTeacher):
    """Add coef (log p_teacher - log p_student) to the advantage of each sampled token, without gradient.

    Both log-probs are at rollout.temperature. The term is added after baseline and scale, so no std divides it.
    """

    where: Literal["reward"] = "reward"
    discount: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="discount of later tokens' log-ratios. 0: a token is credited with its own log-ratio only, which "
        "gives the gradient of each token's reverse KL (Thinking Machines 2025); 1: a token is also credited with all "
        "later log-ratios, which gives the gradient of the completion's reverse KL (MiniLLM, 2306.08543); default: 0, "
        "as in most trainers",
    )


class DistillInLoss(_FromTeacher):
    """Add coef D(teacher, student) over the vocabulary to each token's loss, under the objective's aggregation.

    Both models' logits are divided by distill.temperature, not by rollout.temperature.
    """

    where: Literal["loss"] = "loss"
    beta: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="which divergence. 0: forward KL, KL(teacher || student), which is mode-covering; 1: reverse KL, "
        "KL(student || teacher), which is mode-seeking; between: generalised Jensen-Shannon (GKD, 2306.13649); "
        "default: TRL",
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        description="divides the logits of both models. The loss is not multiplied by the temperature's square, unlike "
        "in Hinton et al. (1503.02531). Default: 1",
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        description="compare the teacher's k likeliest tokens one by one, and all other tokens as a single outcome; "
        "none: compare the whole vocabulary",
    )


Distill = Annotated[NoDistillation | DistillInReward | DistillInLoss, Field(discriminator="where")]


def teacher_advantages(distill: DistillInReward, logps: Tensor, teacher_logps: Tensor, mask: Tensor) -> Tensor:
    """Compute the teacher's advantages [B, T], 0 outside the mask and without gradient.

        coef sum_(k >= t) discount^(k - t) (log p_teacher - log p_student)

    logps, teacher_logps [B, T]: log-probs of the sampled tokens under the policy that sampled them and under the
    teacher. mask [B, T].
    """
    import torch

    rewards = distill.coef * torch.where(mask.bool(), (teacher_logps - logps).detach(), 0)
    if distill.discount == 0:
        return rewards
    total, found = torch.zeros_like(rewards[:, 0]), torch.empty_like(rewards)
    # A token outside the mask adds nothing, but it counts as one step of the discount, unlike in `gae`.
    for token in reversed(range(rewards.shape[1])):
        total = rewards[:, token] + distill.discount * total
        found[:, token] = total
    return torch.where(mask.bool(), found, 0)


def divergence(distill: DistillInLoss, logps: Tensor, teacher_logps: Tensor) -> Tensor:
    """Compute D [...] in nats; logps, teacher_logps [..., V]: normalised log-probs of student and teacher."""
    student, teacher, _ = _outcomes(distill, logps, teacher_logps)
    match distill.beta:
        case 0:
            return _kl(teacher, student)
        case 1:
            return _kl(student, teacher)
        case beta:
            # log M is computed as log S + log(M / S), which is exactly log S where T = S. So D is exactly 0 there.
            mixture = student + _mixture_ratio(student, teacher, beta)
            return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def divergence_gradient(distill: DistillInLoss, logps: Tensor, teacher_logps: Tensor) -> Tensor:
    """Compute the gradient [..., V] of `divergence` with respect to the student's logits.

    logps, teacher_logps [..., V]: the log-softmax of both models' logits. The formulas are in the module's docstring.
    """
    student, teacher, top = _outcomes(distill, logps, teacher_logps)
    total: Tensor | float
    # `weights` is W for each outcome and `total` their sum. The gradient of an outcome's logit is W_v - S_v total.
    match distill.beta:
        case 0:
            weights, total = -teacher.exp(), -1.0
        case 1:
            weights = student.exp() * (student - teacher)
            total = weights.sum(-1, keepdim=True)
        case beta:
            weights = (beta - 1) * student.exp() * _mixture_ratio(student, teacher, beta)
            total = weights.sum(-1, keepdim=True)
    if top is None:
        return weights - logps.exp() * total
    # The last outcome's weight is split among its tokens in proportion to their probabilities.
    of_others = weights[..., -1:] * (logps - student[..., -1:]).exp()
    return of_others.scatter(-1, top, weights[..., :-1]) - logps.exp() * total


class _Outcomes(NamedTuple):
    """The K outcomes over which student and teacher are compared."""

    student: Tensor
    """Log-probs [..., K] under the student."""
    teacher: Tensor
    """Log-probs [..., K] under the teacher."""
    top: Tensor | None
    """Ids [..., K - 1] of the tokens that are single outcomes; None if all tokens are single outcomes."""


def _outcomes(distill: DistillInLoss, logps: Tensor, teacher_logps: Tensor) -> _Outcomes:
    if distill.top_k is None or distill.top_k >= logps.shape[-1]:
        return _Outcomes(logps, teacher_logps, None)
    top = teacher_logps.topk(distill.top_k).indices
    return _Outcomes(_with_others(logps, top), _with_others(teacher_logps, top), top)


def _with_others(logps: Tensor, top: Tensor) -> Tensor:
    """Return the log-probs of the top tokens [..., k], followed by that of all other tokens together: [..., k + 1]."""
    import torch

    # If the top tokens have all the probability, the others have log 0, which becomes LEAST_LOGP.
    others = logps.scatter(-1, top, -math.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logps.gather(-1, top), others.clamp(min=LEAST_LOGP)], -1)


def _mixture_ratio(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Compute log M - log S without overflow; exactly 0 where T = S."""
    import torch

    # With x = log T - log S, the result is log(1 + beta (e^x - 1)) = x + log(1 + (1 - beta) (e^-x - 1)). Each form is
    # used on the side where its exponential is at most 1. On the other side it is clamped to stay finite.
    ratio = teacher - student
    above = ratio + ((1 - beta) * (-ratio.clamp(min=0)).expm1()).log1p()
    return torch.where(ratio < 0, (beta * ratio.clamp(max=0).expm1()).log1p(), above)


def _kl(one: Tensor, other: Tensor) -> Tensor:
    return (one.exp() * (one - other)).sum(-1)
