"""Formulas of preference objectives in plain text, generated from the knobs for any point of the space.

Notation: l(y) is the log-prob of a completion y under the policy pi, l_ref(y) its log-prob under the reference, and y_t
one of its tokens.
"""

from __future__ import annotations

from algorithms.preference.objective import Matching, PreferenceObjective, Reference, couples_pairs

_REFERENCES: dict[Reference, str] = {
    "none": "c = l(chosen), r = l(rejected), without a reference",
    "initial": "c = l(chosen) - l_ref(chosen), r = l(rejected) - l_ref(rejected), pi_ref the starting weights",
    "round_start": (
        "c = l(chosen) - l_ref(chosen), r = l(rejected) - l_ref(rejected), pi_ref the policy at the start of the round"
    ),
}

_DIFFERENCES: dict[Matching, str] = {
    "pairs": "d = c - r",
    "sorted": (
        "d = sorted l(chosen) - l(rejected) minus sorted l_ref(chosen) - l_ref(rejected), both over the step's pairs"
    ),
    "sorted_unpaired": "d = sorted c minus sorted r, both over the step's pairs",
}


def pair_parts(objective: PreferenceObjective) -> dict[str, str]:
    """Map each part of the objective to its formula with the values of the active knobs, or "" if the part is off."""
    return {
        "log-prob": _logp(objective),
        "log-ratio": _REFERENCES[objective.reference],
        "logit": _logit(objective),
        "pair loss": _pair_loss(objective),
        "zero point": _zero_point(objective),
        "weight": _weight(objective),
        "NLL": _nll(objective),
        "loss": _loss(objective),
    }


def _logp(objective: PreferenceObjective) -> str:
    if objective.logp == "mean":
        return "l(y) = mean over the completion's tokens of log pi(y_t)"
    beyond = f", times {objective.ld_alpha:g} beyond the length of the pair's shorter one"
    return f"l(y) = sum over the completion's tokens of log pi(y_t){beyond if objective.ld_alpha != 1 else ''}"


def _logit(objective: PreferenceObjective) -> str:
    # The other links have no h. Their formulas use c, r or the odds instead.
    match objective.link:
        case "logistic" | "hinge" | "exo" | "discopop":
            minus = f" - {objective.margin:g}" if objective.margin else ""
            penalty = f" - {objective.positive_penalty:g} max(0, -c)" if objective.positive_penalty else ""
            return f"h = {objective.beta:g} d{minus}, {_DIFFERENCES[objective.matching]}{penalty}"
        case _:
            return ""


def _pair_loss(objective: PreferenceObjective) -> str:
    beta, target = f"{objective.beta:g}", f"{1 / (2 * objective.beta):g}"
    match objective.link:
        case "logistic":
            return _logistic(objective)
        case "hinge":
            return "max(0, 1 - h)"
        case "square":
            return f"(c - r - {target})^2, {target} = 1 / (2 x {beta})"
        case "exo":
            e = objective.label_smoothing
            return f"q log(q / {1 - e:g}) + (1 - q) log((1 - q) / {e:g}), q = sigmoid(h)"
        case "discopop":
            return f"-(1 - w) log sigmoid(h) + w exp(-h), w = sigmoid(h / {objective.discopop_tau:g})"
        case "odds_ratio":
            return f"-{beta} log sigmoid(log odds of chosen - log odds of rejected), log odds = l - log(1 - exp(l))"
        case "kto":
            return (
                f"1/2 [{objective.desirable_weight:g} sigmoid({beta} (z - c)) + {objective.undesirable_weight:g} "
                f"sigmoid({beta} (r - z))], the mean over the two completions"
            )
        case "bco":
            return f"-log sigmoid({beta} c) - log sigmoid(-{beta} r)"
        case "nca":
            return f"-log sigmoid({beta} c) - 1/2 log sigmoid(-{beta} c) - 1/2 log sigmoid(-{beta} r)"
        case "apo_zero":
            return f"sigmoid(-{beta} c) + sigmoid({beta} r)"
        case "apo_down":
            return f"sigmoid({beta} c) + sigmoid(-{beta} (c - r))"
        case "sppo_hard":
            return f"(c - {target})^2 + (r + {target})^2, {target} = 1 / (2 x {beta})"


def _logistic(objective: PreferenceObjective) -> str:
    e = objective.label_smoothing
    if objective.smoothing == "robust":
        return f"[-{1 - e:g} log sigmoid(h) + {e:g} log sigmoid(-h)] / {1 - 2 * e:g}"
    return f"-{1 - e:g} log sigmoid(h) - {e:g} log sigmoid(-h)" if e else "-log sigmoid(h)"


def _zero_point(objective: PreferenceObjective) -> str:
    if objective.link != "kto":
        return ""
    return "z = estimate of the KL from the reference, in nats, at least 0, without gradient"


def _weight(objective: PreferenceObjective) -> str:
    if objective.weighting == "none":
        return ""
    return "w = exp(mean log pi of the chosen tokens + mean log pi of the rejected tokens), without gradient"


def _nll(objective: PreferenceObjective) -> str:
    coef = objective.nll_coef
    return f"{coef:g} x mean of -log pi over the chosen tokens of the optimiser step" if coef else ""


def _loss(objective: PreferenceObjective) -> str:
    pair_loss = "w x pair loss" if objective.weighting != "none" else "pair loss"
    split = "; a step cannot be split into micro-batches" if couples_pairs(objective) else ""
    return f"mean over the step's pairs of {pair_loss}{' + NLL' if objective.nll_coef else ''}, minimised{split}"
