"""The preference objective: one point in the knob space of learning from chosen and rejected completions.

DPO, SimPO, IPO, KTO, ... are named points of this space (`algorithms.presets`). In symbols:

    c = l(chosen) - l_ref(chosen), r = l(rejected) - l_ref(rejected)      log-probs of completions, see `logp`
    loss = mean over pairs of [weight link(c, r)] + nll_coef NLL(chosen)      minimised

Most links use only the difference d = c - r, in the logit h = beta d - margin. Not every knob exists at every point;
see `harness.settings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.errors import InvalidError
from harness.settings import InWords, OnlyWith, Settings

Link = Literal[
    "logistic",
    "hinge",
    "square",
    "kto",
    "bco",
    "apo_zero",
    "apo_down",
    "sppo_hard",
    "nca",
    "exo",
    "odds_ratio",
    "discopop",
]
Logp = Literal["sum", "mean"]
Reference = Literal["none", "initial", "round_start"]
Smoothing = Literal["conservative", "robust"]
Weighting = Literal["none", "wpo"]
Matching = Literal["pairs", "sorted", "sorted_unpaired"]

_ON_EACH_SIDE: tuple[Link, ...] = ("kto", "bco", "apo_zero", "apo_down", "sppo_hard", "nca")
"""Links with separate terms for c and for r. Such terms are meaningful only relative to a reference."""


class PreferenceObjective(Settings):
    """The loss of an update on pairs. Knobs that do not exist at this point must keep their defaults."""

    link: Annotated[Link, InWords(default="the algorithm's")] = Field(
        description="loss of a pair, with h = beta (c - r) - margin: logistic, -log sigmoid(h) (DPO, 2305.18290, eq. "
        "7); hinge, max(0, 1 - h) (SLiC, 2309.06657); square, (c - r - 1 / (2 beta))^2 (IPO, 2310.12036, eq. 17); exo, "
        "the reverse KL of sigmoid(h) from the smoothed label (2402.00856, eq. 16); odds_ratio, -beta log "
        "sigmoid(log odds of chosen - log odds of rejected) (ORPO, 2403.07691, eq. 7); discopop, a blend of logistic "
        "and exponential (2406.08414, eq. 5). Links with a term for each side: kto, sigmoid(beta (z - c)) and "
        "sigmoid(beta (r - z)), averaged over completions (2402.01306); bco, -log sigmoid(beta c) - log "
        "sigmoid(-beta r), without the running mean of rewards that the paper subtracts (2404.04656; TRL 1.16); "
        "apo_zero, sigmoid(-beta c) + sigmoid(beta r), and apo_down, sigmoid(beta c) + sigmoid(-beta (c - r)) "
        "(2408.06266, eq. 7 and 8); sppo_hard, (c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2 (2405.00675, eq. 4.7); nca, "
        "-log sigmoid(beta c) - log sigmoid(-beta c) / 2 - log sigmoid(-beta r) / 2 (2402.05369)",
    )
    logp: Logp = Field(
        default="sum",
        description="how a completion's token log-probs become one number. sum: the completion's log-prob (DPO); mean: "
        "independent of length (SimPO; IPO as its authors ran it; Tulu 3's DPO). The mean is the sum divided by the "
        "length, so it needs a larger beta",
    )
    reference: Reference = Field(
        default="initial",
        description="the policy whose log-probs are subtracted. none: nothing is subtracted; initial: the starting "
        "weights; round_start: the policy at the start of the round (iterative DPO)",
    )
    beta: float = Field(
        default=0.1,
        gt=0,
        description="scale of log-ratios before the link. For square and sppo_hard, the target is 1 / (2 beta); for "
        "odds_ratio, beta is the weight of the term; default: TRL, and the DPO paper's dialogue runs",
    )
    margin: Annotated[float, OnlyWith("link", ("logistic", "hinge"))] = Field(
        default=0.0,
        ge=0,
        description="subtracted from beta (c - r): SimPO's gamma (2405.14734, eq. 6), in units of the logit; default: "
        "off",
    )
    label_smoothing: Annotated[float, OnlyWith("link", ("logistic", "exo"))] = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="probability that a label is wrong; default: 0, labels are trusted (exo needs more than 0)",
    )
    smoothing: Annotated[Smoothing, OnlyWith("link", ("logistic",))] = Field(
        default="conservative",
        description="loss of a label that is right with probability 1 - e, where L is the logistic loss. conservative: "
        "(1 - e) L(h) + e L(-h), whose minimum is at a finite h (cDPO, Mitchell 2023); robust: ((1 - e) L(h) - e "
        "L(-h)) / (1 - 2 e), the unbiased loss (2403.00409). With label_smoothing=0 the two are the same",
    )
    nll_coef: float = Field(
        default=0.0,
        ge=0,
        description="coefficient of the negative log-likelihood of the chosen completions, a mean over their tokens in "
        "the optimiser step (RPO, ORPO: 1); default: off",
    )
    positive_penalty: Annotated[float, OnlyWith("link", ("logistic",))] = Field(
        default=0.0,
        ge=0,
        description="lambda of DPO-Positive (2402.13228, eq. 3): lambda max(0, -c) is subtracted from c - r, inside "
        "the sigmoid and under beta; default: off",
    )
    desirable_weight: Annotated[float, OnlyWith("link", ("kto",))] = Field(
        default=1.0, gt=0, description="weight of the chosen side; default: TRL"
    )
    undesirable_weight: Annotated[float, OnlyWith("link", ("kto",))] = Field(
        default=1.0, gt=0, description="weight of the rejected side; default: TRL"
    )
    ld_alpha: Annotated[float, OnlyWith("logp", ("sum",))] = Field(
        default=1.0,
        ge=0,
        le=1,
        description="weight of a completion's tokens beyond the length of the pair's shorter completion (LD-DPO, "
        "2409.06411); default: 1, off",
    )
    weighting: Weighting = Field(
        default="none",
        description="weight of a pair's loss, without gradient. none: 1; wpo: exp of the mean token log-probs of both "
        "completions (2406.11827, eq. 2), without the paper's alignment by the sum of p^2 over the vocabulary",
    )
    matching: Annotated[Matching, OnlyWith("link", ("logistic",))] = Field(
        default="pairs",
        description="what is compared. pairs: c with r, in each pair; sorted: the batch's sorted differences chosen - "
        "rejected under the policy with those under the reference; sorted_unpaired: the batch's sorted c with its "
        "sorted r (AOT, 2406.05882)",
    )
    discopop_tau: Annotated[float, OnlyWith("link", ("discopop",))] = Field(
        default=0.05, gt=0, description="temperature of the blend; default: the paper, as in TRL"
    )

    def contradictions(self) -> Iterator[InvalidError]:
        yield from _problems(self)


def couples_pairs(objective: PreferenceObjective) -> bool:
    """Return whether a pair's loss depends on the other pairs of its batch, so that a step cannot be split.

    This is False for kto, because its zero point is passed in as `kl_reference`.
    """
    return objective.matching != "pairs"


def preference_differences_that_cannot_act(a: PreferenceObjective, b: PreferenceObjective) -> dict[str, str]:
    """Map each knob that differs between `a` and `b` without any effect on the loss to the reason."""
    if a.smoothing != b.smoothing and a.label_smoothing == b.label_smoothing == 0 and a.link == b.link == "logistic":
        return {"smoothing": "label_smoothing is 0, where labels are trusted either way"}
    return {}


def _problems(objective: PreferenceObjective) -> Iterator[InvalidError]:
    link = objective.link
    if link == "exo" and objective.label_smoothing == 0:
        yield InvalidError("algorithms.preference.exo_without_smoothing")
    if link == "odds_ratio" and objective.reference != "none":
        yield InvalidError("algorithms.preference.odds_with_reference", reference=objective.reference)
    if objective.reference == "none":
        yield from _reference_problems(objective)
    if objective.matching != "pairs":
        yield from _matching_problems(objective)


def _reference_problems(objective: PreferenceObjective) -> Iterator[InvalidError]:
    if objective.link in _ON_EACH_SIDE:
        yield InvalidError("algorithms.preference.sides_without_reference", link=objective.link)
    if objective.positive_penalty > 0:
        yield InvalidError("algorithms.preference.penalty_without_reference", penalty=objective.positive_penalty)
    if objective.matching == "sorted":
        yield InvalidError("algorithms.preference.sorted_without_reference")


def _matching_problems(objective: PreferenceObjective) -> Iterator[InvalidError]:
    penalty, matching = objective.positive_penalty, objective.matching
    if penalty > 0:
        yield InvalidError("algorithms.preference.penalty_of_sorted", penalty=penalty, matching=matching)
    if objective.weighting != "none":
        yield InvalidError("algorithms.preference.weight_of_sorted", weighting=objective.weighting, matching=matching)
