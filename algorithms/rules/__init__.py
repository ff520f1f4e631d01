"""`rule`: the loss of one token from its advantage A and its importance ratio r.

A rule is one class in one file, in this folder or in a plug-in. Its fields are the knobs `rule.*`. Its methods are the
loss and all that the rest of bench must know about the rule: which ratios it can use, which tokens its bounds affect,
its formula in words, and which of its knobs have no effect (for the no-op guard). No other module treats any rule
specially.

A rule's file must not import torch at its top, because commands that only list or describe rules import it too.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from harness.errors import RefusedError
from harness.plugins import Kind
from harness.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImportanceRatio:
    """How the log-ratios of tokens form r: all that is known of a value of the knob `ratio`."""

    about: str
    """The words of the knob's description for the value."""
    formula: str
    log_of: Callable[[Tensor, Tensor], Tensor]
    """Returns log r [B, T] or [B, 1], from log-ratios [B, T], 0 outside the mask, and the counts of tokens [B, 1]."""
    of_completion: bool = True
    """True if the tokens of a completion share one ratio."""
    length_power: int = 0
    """The power of n_i in the gradient by a token's log-prob, where r and the advantages are the same for all."""


RATIOS: Mapping[str, ImportanceRatio] = {
    "token": ImportanceRatio(
        "of each token (PPO)", "r = pi / pi_old of the token", lambda log_ratio, n: log_ratio, of_completion=False
    ),
    "sequence_mean": ImportanceRatio(
        "of the whole completion, the geometric mean of its tokens' ratios (GSPO, 2507.18071, eq. 7)",
        "r = (product over the completion's tokens of pi / pi_old)^(1 / n_i)",
        lambda log_ratio, n: log_ratio.sum(1, keepdim=True) / n,
    ),
    "sequence_product": ImportanceRatio(
        "their product (RLOO in TRL)",
        "r = product over the completion's tokens of pi / pi_old",
        lambda log_ratio, n: log_ratio.sum(1, keepdim=True),
        length_power=1,
    ),
}
"""Every value of the knob `ratio` but `none`, which is for rules that have none."""

if TYPE_CHECKING:
    Ratio = str
else:
    Ratio = Literal["none", *RATIOS]
Sign = Literal["positive", "negative"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before the exponential, as in verl. A token beyond that has no gradient through r."""


class Rule(Settings):
    """The base class of all rules. Tensors are [B, T], for B completions of T tokens.

    A rule must have `type`, its name, and the methods `loss` and `formula`. Everything else has a default that makes no
    claim about the rule.
    """

    type: str

    ratios: ClassVar[tuple[Ratio, ...]] = tuple(RATIOS)
    """The importance ratios that the rule can use; empty: it has no ratio, and the knob `ratio` does not exist."""
    differentiates_ratio: ClassVar[bool] = True
    """True if the gradient reaches log pi through r. False if the rule uses r as a detached weight, or not at all."""
    acts_without_advantage: ClassVar[bool] = True
    """True if a token with A = 0 can have a gradient. If False, completions with A = 0 need no forward pass."""
    reads_advantage: ClassVar[bool] = True
    """True if the loss depends on the advantage A. False for supervised rules, which ignore rewards."""
    inert_at_ratio_one: ClassVar[Mapping[str, str]] = {}
    """Knobs that do not affect the gradient if every r is 1, as in the first optimiser step -> the reason."""

    @abstractmethod
    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Return the loss of every token, to be minimised. `logp` and `ratio` carry a gradient, `advantages` do not.

        If the ratio is the completion's, it is repeated at each of its tokens, and so the loss is the same at each
        token. Under seq_mean_token_mean, the mean over the tokens is then this loss (GSPO, GMPO).
        """

    @abstractmethod
    def formula(self) -> str:
        """Write the loss of a token in plain text, with the value of every knob: `-A clip(r, 0.8, 1.2)`."""

    def clip_log_ratios(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        """Return the token log-ratios that form the importance ratio. A rule may clip them here first."""
        return log_ratio

    def bounds(self) -> tuple[float, float] | None:
        """Return (low, high), beyond which the rule bounds the `bounded_ratio`, or None if it has no bounds."""
        return None

    def bounded_ratio(self, ratio: Tensor, log_ratio: Tensor) -> Tensor:
        """Return the ratio that `bounds` applies to: the importance ratio, or another function of the log-ratio."""
        return ratio

    def beyond_bounds(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Mark tokens, as bool, whose bounded ratio is above the high bound if A > 0, or below the low one if A < 0."""
        low, high = self.bounds() or (-math.inf, math.inf)
        return ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))

    def clip_metrics(self, ratio: Tensor, advantages: Tensor) -> dict[str, Tensor]:
        """Map each clip/* metric to a bool mask of the tokens whose fraction it reports. ratio: the `bounded_ratio`."""
        bounds = self.bounds()
        if bounds is None:
            return {}
        low, high = ratio < bounds[0], ratio > bounds[1]
        return {
            "low_frac_sign_aware": low & (advantages < 0),
            "high_frac_sign_aware": high & (advantages > 0),
            "low_frac_any_sign": low,
            "high_frac_any_sign": high,
        }

    def treatment(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return two bool masks for records: the tokens that a bound affects, and those that the rule leaves out."""
        beyond = self.beyond_bounds(ratio, advantages)
        return beyond, beyond & False

    def slope_at_ratio_one(self, sign: Sign) -> float | None:
        """Return d loss / d log pi at r = 1, divided by -A, for advantages of this sign.

        If this is None, the no-op guard assumes nothing about the rule.
        """
        return None

    def acts_on_sign(self) -> Mapping[str, Sign]:
        """Map each knob that affects only tokens with one sign of advantage to that sign."""
        return {}

    @classmethod
    def excludes(cls) -> tuple[str, ...]:
        """Return the knobs of the objective that do not exist with this rule: `ratio`, if the rule has no ratio."""
        return () if cls.ratios else ("ratio",)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Raise TypeError if a rule lacks a method, when it is defined instead of when it is first used."""
        if _is_rule(cls) and (missing := sorted(cls.__abstractmethods__)):
            raise TypeError(f"the rule {_name_of(cls)!r} has no {' and no '.join(missing)}; give it the method")


def _is_rule(thing: object) -> bool:
    """Return whether the object is a rule with a name. Base classes of rules have no name."""
    return isinstance(thing, type) and issubclass(thing, Rule) and isinstance(thing.model_fields["type"].default, str)


def _name_of(rule: type[Rule]) -> str:
    return str(rule.model_fields["type"].default)


RULES: Kind[type[Rule]] = Kind(
    "rule",
    _is_rule,
    "algorithms.rules",
    "bench ls rules",
    _name_of,
    summary_of=lambda rule: (rule.__doc__ or "").partition("\n")[0],
)


def token_losses(
    rule: Rule, logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, is_first: bool = False
) -> Tensor:
    """Return the rule's loss of each token [B, T], after checking it.

    mask: bool, true for tokens that count.
    is_first: also check that the loss and its gradient with respect to `logp` are finite. The host then waits for the
    device.
    Raises RefusedError if the loss is not a float for each token, or does not depend on `logp` or `ratio`. If is_first,
    it is also raised if the loss or its gradient is not finite although all arguments are finite.
    """
    import torch

    losses = checked(rule, "loss", rule.loss(logp, ratio, advantages), logp)
    if not logp.requires_grad:
        return losses
    path = inspect.getfile(type(rule))
    if not losses.requires_grad:
        raise RefusedError("algorithms.rule_trains_nothing", rule=rule.type, path=path)
    if is_first:
        total = losses.where(mask, 0).sum()
        # The graph is kept, because the backward pass of the step still needs it.
        (gradient,) = torch.autograd.grad(total, logp, retain_graph=True, allow_unused=True)
        if gradient is None:
            raise RefusedError("algorithms.rule_trains_nothing", rule=rule.type, path=path)
        # If an argument is not finite, the fault is in the weights or the data, not in the rule. The optimiser reports
        # divergence.
        values = torch.stack([logp, ratio, advantages, losses, gradient]).detach()
        *arguments, loss, slope = (values.isfinite() | ~mask).all(2).all(1).tolist()
        if all(arguments) and not (loss and slope):
            what = "the gradient of loss" if loss else "loss"
            raise RefusedError("algorithms.rule_not_finite", rule=rule.type, path=path, what=what)
    return losses


def checked(rule: Rule, method: str, given: object, like: Tensor, holds_bools: bool = False) -> Tensor:
    """Return a rule's result `given` if it has the shape of `like` and the right dtype.

    holds_bools: expect bool instead of a float dtype.
    Raises RefusedError otherwise. torch would broadcast a smaller tensor, and the rule would silently train or measure
    something else.
    """
    import torch

    came = type(given).__name__
    if isinstance(given, torch.Tensor):
        fits = given.dtype == torch.bool if holds_bools else given.is_floating_point()
        if fits and given.shape == like.shape:
            return given
        came = f"{given.dtype} of shape {list(given.shape)}"
    kind = "bools" if holds_bools else "floats"
    axes = "completions, tokens" if like.ndim == 2 else "tokens"
    raise RefusedError(
        "algorithms.rule_gives_no_tokens",
        rule=rule.type,
        path=inspect.getfile(type(rule)),
        method=method,
        came=came,
        kind=kind,
        shape=list(like.shape),
        axes=axes,
    )


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return exp(log_ratio), with log_ratio clamped to +-LOG_RATIO_LIMIT."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def k2_of(log_ratio: Tensor) -> Tensor:
    """Return the KL estimator k2 = d^2 / 2 (http://joschu.net/blog/kl-approx.html) at every token, in nats."""
    return log_ratio**2 / 2


def k3_of(log_ratio: Tensor) -> Tensor:
    """Return the KL estimator k3 = exp(-d) - 1 + d at every token, in nats.

    It is constant for log-ratios d below -LOG_RATIO_LIMIT, so it cannot overflow.
    """
    bounded = log_ratio.clamp(min=-LOG_RATIO_LIMIT)
    # For small d, expm1(-d) is more precise than exp(-d) - 1.
    return (-bounded).expm1() + bounded


def kl_means(log_ratio: Tensor) -> dict[str, Tensor]:
    """Return the means of k1, k2 and k3 over the log-ratios d of any number of tokens."""
    return {"k1": log_ratio.mean(), "k2": k2_of(log_ratio).mean(), "k3": k3_of(log_ratio).mean()}


def importance_ratio(kind: Ratio, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return the importance ratio r at every token: [B, T]. A completion's ratio is repeated at each of its tokens.

    log_ratio [B, T]: log pi - log pi_old, 0 outside the mask. mask [B, T] bool.
    """
    if kind == "none":
        return log_ratio.new_ones(log_ratio.shape)
    # The bound is on the combined log-ratio, not on those of tokens: single tokens may leave it and cancel out.
    log_r = RATIOS[kind].log_of(log_ratio, mask.sum(1, keepdim=True).clamp(min=1))
    return bounded_exp(log_r).expand_as(log_ratio)
