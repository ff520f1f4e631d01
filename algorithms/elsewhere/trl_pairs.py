"""TRL's trainers on pairs: DPOTrainer, KTOTrainer, and the experimental CPOTrainer (SimPO) and ORPOTrainer."""

from __future__ import annotations

from typing import Any

from algorithms.dialects import Config, Given, Knobs, Point, Written, names_of
from harness.settings import KnobValue

_LINKS: dict[str, dict[str, KnobValue]] = {
    "sigmoid": {"link": "logistic"},
    "sigmoid_norm": {"link": "logistic", "logp": "mean"},
    "robust": {"link": "logistic", "smoothing": "robust"},
    "aot": {"link": "logistic", "matching": "sorted"},
    "aot_unpaired": {"link": "logistic", "matching": "sorted_unpaired"},
    "hinge": {"link": "hinge"},
    "ipo": {"link": "square", "logp": "mean"},
    "exo_pair": {"link": "exo"},
    "nca_pair": {"link": "nca"},
    "bco_pair": {"link": "bco"},
    "sppo_hard": {"link": "sppo_hard"},
    "apo_zero": {"link": "apo_zero"},
    "apo_down": {"link": "apo_down"},
    "discopop": {"link": "discopop"},
}
"""DPOConfig's `loss_type` -> our knobs. `sft` in addition to one of these is nll_coef."""
_SMOOTHED = ("robust", "exo_pair", "aot", "aot_unpaired")
"""The losses that read label_smoothing. The others accept it and ignore it."""

OPTIMISER = {
    "learning_rate": "train.learning_rate",
    "weight_decay": "train.weight_decay",
    "max_grad_norm": "train.max_grad_norm",
    "adam_beta1": "train.optimizer.beta1",
    "adam_beta2": "train.optimizer.beta2",
    "adam_epsilon": "train.optimizer.eps",
}
REFERENCE: dict[str, Any] = {"sync_ref_model": False, "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512}


def _loss_type(knobs: Knobs) -> str:
    """Return the loss that agrees with the objective in the most knobs; of equals the first."""

    def agreement(loss: str) -> tuple[bool, int]:
        # Equal links come before any number of other knobs. A loss without an entry for a knob has our default of it.
        asked = {"matching": "pairs", "logp": "sum", "smoothing": "conservative", **_LINKS[loss]}
        # The aot losses also read label_smoothing: it counts as one more knob in which they agree.
        smooths = bool(knobs.get("label_smoothing")) and loss in ("aot", "aot_unpaired")
        return knobs["link"] == asked["link"], sum(knobs.get(knob, of) == of for knob, of in asked.items()) + smooths

    return max(_LINKS, key=agreement)


def _write_dpo(knobs: Knobs) -> Written:
    loss = _loss_type(knobs)
    settings: dict[str, Any] = {"loss_type": [loss], "beta": knobs["beta"]}
    if loss in _SMOOTHED:
        settings["label_smoothing"] = knobs.get("label_smoothing", 0.0)
    if loss == "discopop":
        settings["discopop_tau"] = knobs["discopop_tau"]
    if knobs.get("ld_alpha", 1.0) != 1:
        settings["ld_alpha"] = knobs["ld_alpha"]
    if knobs["nll_coef"]:
        # A list of losses is summed with these weights: ours is the pair's loss plus the likelihood.
        settings |= {"loss_type": [loss, "sft"], "loss_weights": [1.0, knobs["nll_coef"]]}
    if knobs["weighting"] == "wpo":
        settings["use_weighting"] = True
    return Written(settings)


def _read_dpo(given: Given) -> Point:
    outside: dict[str, str] = {}
    limits: list[str] = []
    losses = given["loss_type"] if isinstance(given["loss_type"], list) else [given["loss_type"]]
    known = [loss for loss in losses if loss in _LINKS]
    if len(known) + losses.count("sft") != len(losses) or not losses:
        raise given.refused("loss_type", f"{', '.join(_LINKS)} or sft, or a list of them")
    weights = [1.0] * len(losses) if given["loss_weights"] is None else given.numbers("loss_weights", len(losses))
    loss = (known or ["sigmoid"])[0]
    smoothing = given.number("label_smoothing")
    knobs: dict[str, KnobValue] = {"reference": "initial", "beta": given.number("beta"), **_LINKS[loss]}
    if loss in _SMOOTHED:
        knobs["label_smoothing"] = smoothing
    elif smoothing:
        limits.append(f"label_smoothing={smoothing:g} is accepted and ignored with loss_type={loss}")
    if loss == "discopop":
        knobs["discopop_tau"] = given.number("discopop_tau")
    if given["ld_alpha"] is not None:
        if knobs.get("logp") == "mean":
            outside["ld_alpha"] = "tokens are weighed before the division by the length"
        else:
            knobs["ld_alpha"] = given.number("ld_alpha")
    if "sft" in losses:
        knobs["nll_coef"] = weights[losses.index("sft")]
        limits.append("loss_type=sft is a mean over the chosen tokens of each micro-batch, then over micro-batches")
    # Our objective has exactly one loss of pairs, of weight 1.
    if len(known) != 1:
        outside["loss_type"] = "the sum of several losses" if known else "likelihood of the chosen side alone"
    elif weights[losses.index(loss)] != 1:
        outside["loss_weights"] = "the loss of pairs has a weight"
    if given["f_divergence_type"] != "reverse_kl":
        outside["f_divergence_type"] = "log-ratios are transformed by the derivative of another divergence"
    if given.flag("use_weighting"):
        knobs["weighting"] = "wpo"
        outside["use_weighting"] = "log-probs are aligned by the sum of p^2 over the vocabulary first"
    if given.flag("sync_ref_model"):
        outside["sync_ref_model"] = "the reference follows the policy by steps, not by rounds"
    if loss in ("aot", "aot_unpaired"):
        limits.append(f"{loss} sorts within each micro-batch and process")
    return Point(knobs, outside, tuple(limits))


DPO = Config(
    name="DPOConfig",
    family="preference",
    defaults={
        "loss_type": ["sigmoid"],
        "loss_weights": None,
        "beta": 0.1,
        "label_smoothing": 0.0,
        "discopop_tau": 0.05,
        "ld_alpha": None,
        "f_divergence_type": "reverse_kl",
        "use_weighting": False,
        **REFERENCE,
    },
    write=_write_dpo,
    read=_read_dpo,
    promise="dpo",
    promises={
        ("loss_type", "sigmoid"): "dpo",
        ("loss_type", "sigmoid_norm"): "dpo_norm",
        ("loss_type", "robust"): "robust_dpo",
        ("loss_type", "ipo"): "ipo",
        ("loss_type", "exo_pair"): "exo",
        ("loss_type", "nca_pair"): "nca",
        ("loss_type", "sppo_hard"): "sppo_hard",
        ("loss_type", "apo_zero"): "apo_zero",
    },
    plain=OPTIMISER,
    others=names_of("trl", "every", "script", "DPOConfig"),
)


def _write_kto(knobs: Knobs) -> Written:
    settings = {"loss_type": "apo_zero_unpaired" if knobs["link"] == "apo_zero" else "kto", "beta": knobs["beta"]}
    for side in ("desirable_weight", "undesirable_weight"):
        if side in knobs:
            settings[side] = knobs[side]
    return Written(settings)


def _read_kto(given: Given) -> Point:
    outside = {}
    loss = given.one_of("loss_type", ("kto", "apo_zero_unpaired"))
    knobs: dict[str, KnobValue] = {"link": "kto", "beta": given.number("beta")}
    weights = {side: given.number(side) for side in ("desirable_weight", "undesirable_weight")}
    if loss == "kto":
        knobs |= weights
    else:
        knobs["link"] = "apo_zero"
        # apo_zero is the sum over a pair's two sides.
        outside["loss_type"] = "half of apo_zero: the mean is over completions, not pairs"
    if given.flag("sync_ref_model"):
        outside["sync_ref_model"] = "the reference follows the policy by steps, not by rounds"
    limits = "the zero point is estimated in each micro-batch, from completions under other prompts"
    return Point(knobs, outside, (limits,) if loss == "kto" else ())


KTO = Config(
    name="KTOConfig",
    family="preference",
    defaults={
        "loss_type": "kto",
        "beta": 0.1,
        "desirable_weight": 1.0,
        "undesirable_weight": 1.0,
        **REFERENCE,
    },
    write=_write_kto,
    read=_read_kto,
    promise="kto",
    plain=OPTIMISER,
    others=names_of("trl", "every", "script", "KTOConfig"),
)

_LOSS_OF_CPO = {"logistic": "sigmoid", "hinge": "hinge", "square": "ipo"}


def _write_cpo(knobs: Knobs) -> Written:
    loss = _LOSS_OF_CPO.get(str(knobs["link"]), "sigmoid")
    settings: dict[str, Any] = {"loss_type": loss, "beta": knobs["beta"], "cpo_alpha": knobs["nll_coef"]}
    if loss == "sigmoid":
        settings["label_smoothing"] = knobs.get("label_smoothing", 0.0)
        # sigmoid takes sums of log-probs. simpo is the same loss of means, with a margin.
        if knobs["logp"] == "mean":
            settings |= {"loss_type": "simpo", "simpo_gamma": knobs.get("margin", 0.0)}
    return Written(settings)


def _read_cpo(given: Given) -> Point:
    outside: dict[str, str] = {}
    loss = given.one_of("loss_type", (*_LOSS_OF_CPO.values(), "simpo"))
    links = {theirs: ours for ours, theirs in _LOSS_OF_CPO.items()}
    knobs: dict[str, KnobValue] = {
        "link": links.get(loss, "logistic"),
        "logp": "mean" if loss in ("simpo", "ipo") else "sum",
        "reference": "none",
        "beta": given.number("beta"),
        "nll_coef": given.number("cpo_alpha"),
    }
    if loss == "simpo":
        knobs["margin"] = given.number("simpo_gamma")
    if loss in ("simpo", "sigmoid"):
        knobs["label_smoothing"] = given.number("label_smoothing")
    limits = "the likelihood is a mean over the chosen tokens of each micro-batch, then over micro-batches"
    if given.number("alpha") != 0:
        outside["alpha"] = "probabilities are transformed (AlphaPO)"
    return Point(knobs, outside, (limits,) if knobs["nll_coef"] else ())


CPO = Config(
    name="CPOConfig",
    family="preference",
    defaults={
        "loss_type": "sigmoid",
        "beta": 0.1,
        "label_smoothing": 0.0,
        "cpo_alpha": 1.0,
        "simpo_gamma": 0.5,
        "alpha": 0.0,
    },
    write=_write_cpo,
    read=_read_cpo,
    promises={("loss_type", "simpo"): "simpo"},
    plain=OPTIMISER,
    others=names_of("trl", "every", "script", "CPOConfig"),
)


def _read_orpo(given: Given) -> Point:
    knobs: dict[str, KnobValue] = {
        "link": "odds_ratio",
        "logp": "mean",
        "reference": "none",
        "beta": given.number("beta"),
        "nll_coef": 1.0,
    }
    return Point(knobs, {"the likelihood term": "it is of prompt and completion"})


ORPO = Config(
    name="ORPOConfig",
    family="preference",
    defaults={"beta": 0.1},
    write=lambda knobs: Written({"beta": knobs["beta"]}),
    read=_read_orpo,
    promise="orpo",
    plain=OPTIMISER,
    others=names_of("trl", "every", "script", "ORPOConfig"),
)

PAIR_CONFIGS = (DPO, KTO, CPO, ORPO)
