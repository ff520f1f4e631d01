"""Formulas of objectives in plain text, generated from the knobs for any point of the space.

Notation: i is a completion with reward R_i, and t is one of its n_i tokens that enter the loss. B is the number of
completions in the optimiser step. pi is the policy that is updated. pi_old is the policy before the first update on the
rollout batch, with log-probs recomputed by the trainer. pi_sampler is the policy that sampled a token. Formulas of
objectives on pairs are in `algorithms.preference.formulas`.
"""

from __future__ import annotations

from algorithms.distillation import DistillInLoss, DistillInReward
from algorithms.kl import ESTIMATORS, KlInLoss, KlInReward
from algorithms.objective import (
    Baseline,
    Drop,
    MaskAfter,
    MaskBefore,
    Objective,
    Penalise,
    Scale,
    Soft,
    ZeroStd,
)
from algorithms.overrides import AnyObjective
from algorithms.preference.formulas import pair_parts
from algorithms.preference.objective import PreferenceObjective
from algorithms.rules import RATIOS
from algorithms.sampler_correction import (
    GeometricVeto,
    InRatio,
    NoCorrection,
    SequenceBand,
    SequenceTruncate,
    TokenTruncate,
    TokenUnbounded,
)
from algorithms.selection import ClipCov, KlCov, NoSelection, TopEntropy

_BASELINES: dict[Baseline, str] = {
    "none": "R_i",
    "batch_mean": "R_i - mean of R over the rollout batch",
    "group_mean": "R_i - mean of R over the group",
    "leave_one_out": "R_i - mean of R over the group's other completions",
    "length_weighted": "R_i - sum_j n_j R_j / sum_j n_j over the group",
    "random_peer": "sign(R_i - R_peer), the peer one random completion of the group",
}

_SETS: dict[Baseline, str] = {
    "group_mean": "mean over the group's sets",
    "leave_one_out": "mean over the group's sets without the completion",
}
"""The baselines that are subtracted from the mean over a completion's sets of k (pass_k)."""

_STEP = "step's reward r - mean of r over all steps of the group"

_SPREADS: dict[Scale, str] = {
    "group_std": "R over the group",
    "batch_std": "R over the rollout batch",
    "mini_batch_std": "the centred R over the optimiser step",
}

_DIVISORS = {0: "n (ddof 0)", 1: "n - 1 (ddof 1)"}

_REFERENCES = {
    "initial": "the policy before reinforcement learning",
    "iteration_start": "pi_old",
}

_ZERO_STD: dict[ZeroStd, str] = {
    "keep": "take part",
    "mask": "are masked out of the loss, but stay in the denominators over completions",
    "drop": "are dropped, also from the denominators",
}


def formula(objective: AnyObjective) -> dict[str, str]:
    """Map each part of the objective to its formula, with the value of every active knob.

    Parts that are off are left out. Two objectives have the same formulas only if their active knobs agree to six
    digits.
    """
    parts = pair_parts(objective) if isinstance(objective, PreferenceObjective) else _parts(objective)
    return {part: text for part, text in parts.items() if text}


def _parts(objective: Objective) -> dict[str, str]:
    # In reading order: l, w, s, q, k, d and p are defined before the loss that uses them. A part that is off is an
    # empty string.
    return {
        "reward": _reward(objective),
        "advantage": _advantage(objective),
        "ratio": _ratio(objective),
        "token loss": f"l = {objective.rule.formula()}",
        "sampler weight": _sampler_weight(objective),
        "selection": _selection(objective),
        "KL": _kl_loss(objective),
        "teacher": _teacher(objective),
        "sequence penalty": _sequence_penalty(objective),
        "loss": _loss(objective),
        "aggregation": objective.token_weight.formula,
        "entropy": _entropy(objective),
        "critic": _critic(objective),
        "rows": _rows(objective),
    }


def _reward(objective: Objective) -> str:
    parts = []
    match objective.overlong:
        case Penalise(penalty=penalty) if penalty:
            parts.append(f"{penalty:g} is added where a completion was cut at the limit")
        case Soft(cache_frac=cache_frac, factor=factor):
            parts.append(
                f"minus a punishment that grows from 0 at {1 - cache_frac:g} of the limit to {factor:g} at the limit"
            )
    kl = objective.kl
    if isinstance(kl, KlInReward):
        # Only these two baselines give the tokens of a completion different advantages.
        where = "kept by token" if objective.baseline in ("none", "critic") else "summed over the completion into R"
        parts.append(f"-{_beta(kl)} KL at every token, {where}, without gradient; KL = {_kl(kl)}")
    return "; ".join(parts)


def _advantage(objective: Objective) -> str:
    # The same precedence as in `advantages`: first the critic, then steps, then sets and groups.
    if objective.baseline == "critic":
        critic = objective.critic
        whitened = "token rewards whitened over the batch, their mean kept; " if critic.whiten_rewards else ""
        text = (
            f"{whitened}A_t = sum_k ({critic.gamma:g} x {critic.lam:g})^k delta_(t+k), "
            f"delta_t = R_t + {critic.gamma:g} V_(t+1) - V_t, R_i paid at the last token"
        )
    elif objective.credit == "steps":
        text = f"A_t = sum over the steps that end at t or later of {_divided(_STEP, 'r over them', objective)}"
    elif objective.baseline == "none" and objective.kl.where == "reward":
        text = f"A_t = {_divided('sum of the rewards of tokens from t on, R_i paid at the last one', '', objective)}"
    elif objective.pass_k > 1:
        sets = f"mean over the sets of {objective.pass_k} of the group with completion i of the best R in the set"
        text = f"A_i = {_divided(f'{sets} - {_SETS[objective.baseline]}', 'the best R over all sets', objective)}"
    else:
        text = f"A_i = {_divided(_BASELINES[objective.baseline], _SPREADS.get(objective.scale, ''), objective)}"
    return text + _whitening(objective) + _sign(objective)


def _divided(numerator: str, spread: str, objective: Objective) -> str:
    match objective.scale:
        case "none" | "whiten_tokens":
            # `_whitening` adds the whitening of tokens afterwards.
            return numerator
        case "nonzero_frac":
            return f"({numerator}) / (share of the rollout batch's R that are not 0)"
        case _:
            divisor = f"std with divisor {_DIVISORS[objective.scale_ddof]}"
            return f"({numerator}) / (std of {spread} + {objective.scale_eps:g}); {divisor}"


def _whitening(objective: Objective) -> str:
    if objective.scale != "whiten_tokens":
        return ""
    return (
        f"; then (A - mean) / sqrt(variance + {objective.scale_eps:g}), both over all tokens of the rollout batch, "
        f"variance with divisor {_DIVISORS[objective.scale_ddof]}"
    )


def _sign(objective: Objective) -> str:
    return {"both": "", "positive": "; set to 0 where A < 0", "negative": "; set to 0 where A > 0"}[
        objective.advantage_sign
    ]


def _ratio(objective: Objective) -> str:
    if objective.ratio == "none":
        return "none: nothing corrects for the policy's move after the first optimiser step on a rollout batch"
    return RATIOS[objective.ratio].formula.replace("pi_old", _behind(objective))


def _behind(objective: Objective) -> str:
    """Return the policy in the denominator of the importance ratio."""
    return "pi_sampler" if isinstance(objective.sampler_correction, InRatio) else "pi_old"


def _sampler_weight(objective: Objective) -> str:
    correction = objective.sampler_correction
    if isinstance(correction, NoCorrection | InRatio):
        # in_ratio has no weight. It changes the formula of the ratio instead.
        return ""
    if isinstance(correction, GeometricVeto):
        mean = "(product over the completion's tokens of pi_old / pi_sampler)^(1 / n_i)"
        veto = f" or a token's ratio is below {correction.veto_below:g}" if correction.veto_below else ""
        return f"w = 1, but 0 where {mean} is outside [{correction.mean_min:g}, {correction.mean_max:g}]{veto}"
    whole = isinstance(correction, SequenceTruncate | SequenceBand)
    w = "product over the completion's tokens of pi_old / pi_sampler" if whole else "pi_old / pi_sampler of the token"
    if isinstance(correction, TokenUnbounded):
        return f"w = {w}"
    if isinstance(correction, TokenTruncate | SequenceTruncate):
        return f"w = {w}, at most {correction.weight_max:g}"
    return f"w = {w}, 0 outside [{correction.weight_min:g}, {correction.weight_max:g}]"


def _selection(objective: Objective) -> str:
    match objective.select:
        case NoSelection():
            return ""
        case ClipCov(fraction=fraction, cov_low=low, cov_high=high):
            return (
                f"s = 0 for {fraction:g} of the step's tokens, drawn from those with {low:g} < cov < {high:g} that the "
                "clip has not caught, else 1; cov = (A - mean A) (log pi - mean log pi)"
            )
        case KlCov(fraction=fraction, coef=coef):
            return (
                f"q = {coef:g} |log(pi / pi_old)| for the {fraction:g} of the step's tokens of highest cov, else 0; "
                "cov = (A - mean A) (log pi - mean log pi)"
            )
        case TopEntropy(fraction=fraction):
            return f"s = 1 for the {fraction:g} of the step's tokens of highest entropy, else 0"


def _kl(kl: KlInReward | KlInLoss) -> str:
    reference = _REFERENCES.get(kl.reference) or (
        f"a copy of the policy, renewed every {kl.refresh_every_steps} rollout batches"
    )
    return f"{kl.estimator} = {ESTIMATORS[kl.estimator].formula}, d = log(pi / pi_ref), pi_ref {reference}"


def _beta(kl: KlInReward | KlInLoss) -> str:
    if kl.control == "fixed":
        return f"{kl.beta:g}"
    return (
        f"beta (first {kl.beta:g}, then steered to {kl.target_nats:g} nats per token over {kl.horizon_sequences} "
        "completions)"
    )


def _kl_loss(objective: Objective) -> str:
    kl = objective.kl
    return f"k = {_beta(kl)} KL; KL = {_kl(kl)}" if isinstance(kl, KlInLoss) else ""


def _sequence_penalty(objective: Objective) -> str:
    tau = objective.sequence_penalty
    if not tau:
        return ""
    return f"p = {tau:g} / 2 (sum_t log(pi / {_behind(objective)}))^2 / n_i at every token of the completion"


def _teacher(objective: Objective) -> str:
    distill = objective.distill
    if distill.where == "none":
        return ""
    said = f"A from the rewards is multiplied by {distill.verifier_coef:g}"
    if isinstance(distill, DistillInReward):
        later = f" + {distill.discount:g} times that of the next token, and so on" if distill.discount else ""
        return f"{said}; then {distill.coef:g} (log p_teacher - log pi_old) of the token{later} is added to it"
    outcomes = "the vocabulary" if distill.top_k is None else f"the teacher's top {distill.top_k} and all others as one"
    return f"d = {distill.coef:g} D, D = {_divergence(distill)} over {outcomes}, S = pi and T the teacher; {said}"


def _divergence(distill: DistillInLoss) -> str:
    softened = "" if distill.temperature == 1 else f", logits divided by {distill.temperature:g},"
    match distill.beta:
        case 0:
            return f"KL(T || S){softened}"
        case 1:
            return f"KL(S || T){softened}"
        case beta:
            mixture = f"M = {beta:g} T + {1 - beta:g} S"
            return f"{beta:g} KL(T || M) + {1 - beta:g} KL(S || M), {mixture}{softened}"


def _loss(objective: Objective) -> str:
    # The other parts define the letters: s and q in the selection, w in the sampler weight.
    policy = {"clip_cov": "s l", "top_entropy": "s l", "kl_cov": "(l + q)"}.get(objective.select.type, "l")
    terms = [
        f"w {policy}" if _sampler_weight(objective) else policy,
        *(["k"] if objective.kl.where == "loss" else []),
        *(["d"] if objective.distill.where == "loss" else []),
        *(["p"] if objective.sequence_penalty else []),
    ]
    outside = [
        *([" - entropy bonus"] if _entropy(objective) else []),
        *([" + value loss"] if objective.baseline == "critic" else []),
    ]
    return f"aggregation of [{' + '.join(terms)}]{''.join(outside)}, minimised"


def _entropy(objective: Objective) -> str:
    # An adaptive bonus is part of the loss even if its coefficient starts at 0.
    bonus, adaptive = objective.entropy.bonus, objective.entropy.adaptive
    over = "mean entropy over the optimiser step's tokens, whatever the aggregation"
    if adaptive.type == "none":
        return f"bonus {bonus:g} x {over}" if bonus else ""
    below = {"step_both_ways": f"down by {adaptive.delta:g} above it", "step_up_only": "unchanged above it"}
    return (
        f"bonus c x {over}; c starts at {bonus:g} and goes up by {adaptive.delta:g} with a rollout batch whose "
        f"{adaptive.estimator} entropy is below {adaptive.target_nats:g} nats, {below[adaptive.type]}, within "
        f"[{adaptive.coef_min:g}, {adaptive.coef_max:g}]; applied only at or below it"
    )


def _critic(objective: Objective) -> str:
    if objective.baseline != "critic":
        return ""
    critic = objective.critic
    error = "(V - return)^2 / 2"
    if critic.value_clip is not None:
        error += f", or with V kept within {critic.value_clip:g} of V_old where that is larger"
    trunk = {"own": "a model of its own", "shared": "the policy's hidden states"}[critic.trunk]
    learns = f"V reads {trunk}, at {critic.learning_rate_factor:g} x train.learning_rate"
    if critic.warmup_steps:
        learns += f", alone for the first {critic.warmup_steps} rollout batches"
    return (
        f"value loss = {critic.coef:g} x mean over the step's tokens of {error}; return = A before scaling + V_old; "
        f"{learns}"
    )


def _rows(objective: Objective) -> str:
    texts = []
    match objective.overlong:
        case MaskAfter():
            texts.append("completions cut at the limit count in baselines, not in the loss")
        case MaskBefore():
            texts.append("completions cut at the limit count neither in baselines nor in the loss")
        case Drop():
            texts.append("completions cut at the limit are dropped")
    if objective.zero_std == "refill":
        fate = f"are replaced by new prompts, in at most {objective.refill_max_rounds} rounds"
    else:
        fate = _ZERO_STD[objective.zero_std]
    return "; ".join([*texts, f"groups of equal rewards {fate}"])
