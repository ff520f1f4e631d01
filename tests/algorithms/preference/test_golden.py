"""Losses and gradients of pairs against those of trl 1.16.0 on one fixed input: rows 0-2 are chosen, 3-5 rejected."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import PreferenceObjective
from tests.algorithms.preference.cases import Pairs, preset

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "golden.json").read_text())
TOLERANCE = 1e-6

DPO: dict[str, PreferenceObjective] = {
    "sigmoid": preset("dpo"),
    "sigmoid_norm": preset("dpo_norm", beta=0.1),
    "sigmoid_norm_b5": preset("dpo_norm"),
    "hinge": preset("hinge"),
    "ipo": preset("ipo"),
    "nca_pair": preset("nca"),
    "bco_pair": preset("dpo", link="bco"),
    "sppo_hard": preset("sppo_hard"),
    "apo_zero": preset("apo_zero"),
    "apo_down": preset("dpo", link="apo_down"),
    "discopop": preset("dpo", link="discopop"),
    "aot": preset("dpo", matching="sorted"),
    "aot_ls0.1": preset("cdpo", matching="sorted"),
    "aot_unpaired": preset("dpo", matching="sorted_unpaired"),
    "robust_ls0.1": preset("robust_dpo"),
    "exo_pair_ls0.1": preset("exo", label_smoothing=0.1),
    "rpo_sigmoid+sft": preset("rpo"),
    "ld0.5": preset("dpo", ld_alpha=0.5),
    "wpo": preset("dpo", weighting="wpo"),
}
# TRL's term for the chosen completions alone, which here comes with a link: rpo minus dpo.
LIKELIHOOD = "sft"
# TRL divides each token's probability by the sum of p^2 over the vocabulary, which was exp(-1/2) at every token of the
# two completions of the input; the knob is defined without it.
ALIGNMENT = {"wpo": math.exp(0.5 + 0.5)}
# The reference's log-probs were handed to TRL as sums over all tokens, as if they had been computed ahead without
# ld_alpha; its trainer, and the paper, weigh them as the policy's.
WHOLE_REFERENCE = {"ld0.5"}

PREFERENCE_ENTRIES = {
    *(f"trl/dpo/{entry}" for entry in (*DPO, LIKELIHOOD)),
    "trl/simpo_b2_g1",
    "trl/orpo_or_term_b0.1",
}


def given(name: str) -> Tensor:
    return torch.tensor(GOLDEN["inputs"][name], dtype=torch.float64)


def golden_pairs() -> Pairs:
    logp, mask, ref_logp = given("logp"), given("mask"), given("ref_logp")
    return Pairs(logp[:3], logp[3:], mask[:3], mask[3:], ref_logp[:3], ref_logp[3:]).as_leaves()


def value_and_gradient(objective: PreferenceObjective, pairs: Pairs | None = None) -> tuple[float, Tensor]:
    pairs = pairs or golden_pairs()
    loss = pairs.loss(objective)
    return loss.value.item(), torch.cat(pairs.gradients(loss))


def with_whole_reference(pairs: Pairs, ld_alpha: float) -> Pairs:
    """Reference log-probs of which the sum weighed by ld_alpha is the sum of the given ones."""
    shorter = torch.minimum(pairs.chosen_mask.sum(1), pairs.rejected_mask.sum(1))[:, None]

    def raised(logp: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask.cumsum(1) <= shorter, logp, logp / ld_alpha)

    return replace(
        pairs,
        ref_chosen_logp=raised(pairs.ref_chosen_logp, pairs.chosen_mask),
        ref_rejected_logp=raised(pairs.ref_rejected_logp, pairs.rejected_mask),
    )


@pytest.mark.parametrize("entry", DPO)
def test_dpo(entry: str) -> None:
    objective, pairs = DPO[entry], golden_pairs()
    if entry in WHOLE_REFERENCE:
        pairs = with_whole_reference(pairs, objective.ld_alpha)
    value, gradient = value_and_gradient(objective, pairs)
    expected, factor = GOLDEN["trl"]["dpo"][entry], ALIGNMENT.get(entry, 1.0)
    assert factor * value == pytest.approx(expected["loss"], abs=TOLERANCE)
    torch.testing.assert_close(
        factor * gradient, torch.tensor(expected["grad"], dtype=torch.float64), rtol=0, atol=TOLERANCE
    )


def test_likelihood_of_the_chosen() -> None:
    expected = GOLDEN["trl"]["dpo"][LIKELIHOOD]
    (both, both_gradient), (pairs, gradient) = value_and_gradient(preset("rpo")), value_and_gradient(preset("dpo"))
    assert both - pairs == pytest.approx(expected["loss"], abs=TOLERANCE)
    torch.testing.assert_close(
        both_gradient - gradient, torch.tensor(expected["grad"], dtype=torch.float64), rtol=0, atol=TOLERANCE
    )


def test_simpo() -> None:
    """TRL's gradient is by mean log-probs, of which each token has a share of 1 / n, and by sums over pairs."""
    expected = GOLDEN["trl"]["simpo_b2_g1"]
    value, gradient = value_and_gradient(preset("simpo"))
    assert value == pytest.approx(expected["loss"], abs=TOLERANCE)
    of_means = torch.tensor(expected["grad_wrt_avg_logp"], dtype=torch.float64)
    mask = given("mask")
    torch.testing.assert_close(gradient, (of_means / mask.sum(1))[:, None] * mask, rtol=0, atol=TOLERANCE)


def test_orpo() -> None:
    """TRL gives the term of every pair with the opposite sign."""
    objective = preset("orpo", nll_coef=0.0)
    pairs = golden_pairs()
    terms = [pairs.take(torch.tensor([row])).loss(objective).value.item() for row in range(3)]
    assert terms == pytest.approx([-term for term in GOLDEN["trl"]["orpo_or_term_b0.1"]], abs=TOLERANCE)
    assert pairs.loss(objective).value.item() == pytest.approx(sum(terms) / 3)
