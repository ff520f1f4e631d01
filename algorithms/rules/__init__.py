"""`rule`: the loss of one token from its advantage A and its importance ratio r.

A rule is one class in one file, of this folder or of a plug-in. Its fields are the knobs `rule.*`. Its methods are the
loss and all that the rest of bench must know about it: which ratios it can use, which tokens its bounds act on, its
formula in words, and which of its knobs cannot act (for the no-op guard). No other module treats any rule specially.

The file is also read by commands that only list or describe rules, so it must not import torch at its top.
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
    """What the knob's description says of the value."""
    formula: str
    log_of: Callable[[Tensor, Tensor], Tensor]
    """Returns log r [B, T] or [B, 1], from log-ratios [B, T], 0 outside the mask, and the counts of tokens [B, 1]."""
    of_completion: bool = True
    """Whether the tokens of a completion share one ratio."""
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
"""Log-ratios are clamped to +-20 before the exponential, as in verl. Beyond it a token has no gradient through r."""


class Rule(Settings):
    """The base of all rules. Tensors are [B, T]: completions, tokens; they carry the gradient to log pi.

    A rule must have `type`, its name, and the methods `loss` and `formula`. The rest has defaults, which claim nothing.
    """

    type: str

    ratios: ClassVar[tuple[Ratio, ...]] = tuple(RATIOS)
    """The importance ratios that the rule can use; empty: it has no ratio, and the knob `ratio` does not exist."""
    differentiates_ratio: ClassVar[bool] = True
    """Whether the gradient reaches log pi through r. False for a rule that uses r as a weight, or not at all."""
    acts_without_advantage: ClassVar[bool] = True
    """Whether a token with A = 0 can have a gradient. False saves the forward pass of completions without advantage."""
    reads_advantage: ClassVar[bool] = True
    """Whether the loss depends on the advantage A; False for supervised rules, which ignore rewards."""
    inert_at_ratio_one: ClassVar[Mapping[str, str]] = {}
    """Knobs that change no gradient where every r is 1, as in the first optimiser step, each with the reason."""

    @abstractmethod
    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Return the loss of every token, to be minimised. `logp` and `ratio` carry the gradient, `advantages` none.

        A ratio of the whole completion stands at each of its tokens, and so does the completion's one term. Under
        seq_mean_token_mean the mean over its tokens is therefore that term (GSPO, GMPO).
        """

    @abstractmethod
    def formula(self) -> str:
        """Write the loss of a token in plain text, with the value of every knob: `-A clip(r, 0.8, 1.2)`."""

    def clip_log_ratios(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        """Return the log-ratios of tokens that enter the importance ratio; a rule may clip them before that."""
        return log_ratio

    def bounds(self) -> tuple[float, float] | None:
        """Return the interval outside which the rule bounds the ratio (see `bounded_ratio`), or None without one."""
        return None

    def bounded_ratio(self, ratio: Tensor, log_ratio: Tensor) -> Tensor:
        """Return the ratio that `bounds` is for: the importance ratio, or one that the rule makes of the log-ratio."""
        return ratio

    def beyond_bounds(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Mark the tokens whose bounded ratio is beyond the bound towards which their advantage pulls it, as bool."""
        low, high = self.bounds() or (-math.inf, math.inf)
        return ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))

    def clip_metrics(self, ratio: Tensor, advantages: Tensor) -> dict[str, Tensor]:
        """Map each metric clip/* to the tokens that it is the fraction of, as bool. ratio: the bounded one."""
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
        """Mark the tokens that a bound acts on and those that the rule leaves out: two bools, for records of tokens."""
        beyond = self.beyond_bounds(ratio, advantages)
        return beyond, beyond & False

    def slope_at_ratio_one(self, sign: Sign) -> float | None:
        """Return d loss / d log pi at r = 1, divided by -A, for advantages of a sign.

        None if the rule does not say it: the no-op guard then assumes nothing.
        """
        return None

    def acts_on_sign(self) -> Mapping[str, Sign]:
        """Map the knobs that can change a gradient for advantages of one sign only to that sign."""
        return {}

    @classmethod
    def excludes(cls) -> tuple[str, ...]:
        """Return the knobs of the objective that do not exist with this rule: `ratio`, if it can use none."""
        return () if cls.ratios else ("ratio",)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Raise TypeError where a rule is defined without its methods, instead of where it is first used."""
        if _is_rule(cls) and (missing := sorted(cls.__abstractmethods__)):
            raise TypeError(f"the rule {_name_of(cls)!r} has no {' and no '.join(missing)}; give it the method")


def _is_rule(thing: object) -> bool:
    """Return whether the object is a rule with a name; a base of rules has none."""
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
    """Return the rule's loss of each token [B, T].

    mask (bool): which tokens count. is_first: also check that the loss and its gradient to `logp` are finite. The host
    then waits for the device.

    Raises RefusedError if the loss is not a float for each token, or does not depend on `logp` or `ratio`. In the first
    step it is also raised if the loss or its gradient is not finite although all arguments of the rule are.
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
        # The graph is kept, as the backward pass of the step still needs it.
        (gradient,) = torch.autograd.grad(total, logp, retain_graph=True, allow_unused=True)
        if gradient is None:
            raise RefusedError("algorithms.rule_trains_nothing", rule=rule.type, path=path)
        # If an argument is not finite, the weights or the data are at fault, and the optimiser reports that they
        # diverged.
        values = torch.stack([logp, ratio, advantages, losses, gradient]).detach()
        *arguments, loss, slope = (values.isfinite() | ~mask).all(2).all(1).tolist()
        if all(arguments) and not (loss and slope):
            what = "the gradient of loss" if loss else "loss"
            raise RefusedError("algorithms.rule_not_finite", rule=rule.type, path=path, what=what)
    return losses


def checked(rule: Rule, method: str, given: object, like: Tensor, holds_bools: bool = False) -> Tensor:
    """Return the result of a rule's method if it has floats, or bools, in the shape of `like`.

    Raises RefusedError for anything else. torch would broadcast a smaller tensor, and the rule would silently train or
    measure something else.
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
    """Return exp of the log-ratios, clamped to +-LOG_RATIO_LIMIT."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def k2_of(log_ratio: Tensor) -> Tensor:
    """Return the estimator k2 of the KL (http://joschu.net/blog/kl-approx.html) at every token, in nats."""
    return log_ratio**2 / 2


def k3_of(log_ratio: Tensor) -> Tensor:
    """Return the estimator k3 at every token, in nats.

    It is constant for log-ratios below -LOG_RATIO_LIMIT, so it cannot overflow.
    """
    bounded = log_ratio.clamp(min=-LOG_RATIO_LIMIT)
    # expm1 keeps the digits that exp(-d) - 1 loses for a small d.
    return (-bounded).expm1() + bounded


def kl_means(log_ratio: Tensor) -> dict[str, Tensor]:
    """Return the means of k1, k2 and k3 over the log-ratios d of any number of tokens."""
    return {"k1": log_ratio.mean(), "k2": k2_of(log_ratio).mean(), "k3": k3_of(log_ratio).mean()}


def importance_ratio(kind: Ratio, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return r of every token [B, T]; the ratio of a whole completion stands at each of its tokens.

    log_ratio [B, T]: log pi - log pi_old, 0 outside the mask. mask [B, T] bool.
    """
    if kind == "none":
        return log_ratio.new_ones(log_ratio.shape)
    # The bound is on the combined log-ratio, not on those of tokens: single tokens may leave it and cancel out.
    log_r = RATIOS[kind].log_of(log_ratio, mask.sum(1, keepdim=True).clamp(min=1))
    return bounded_exp(log_r).expand_as(log_ratio)
