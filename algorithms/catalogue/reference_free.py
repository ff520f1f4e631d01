"""Presets on pairs that need no reference policy."""

from __future__ import annotations

from algorithms.catalogue.entry import Preset
from algorithms.preference.objective import PreferenceObjective

SIMPO = Preset(
    PreferenceObjective(link="logistic", logp="mean", reference="none", beta=2.0, margin=1.0),
    summary="logistic loss of the difference of mean log-probs minus a margin; no reference",
    source="SimPO, Meng et al. 2405.14734, eq. 6; beta and margin from the authors' README, Llama-3-Base",
    about="The mean log-prob is what sampling ranks by, and needs no second model. margin is the paper's gamma. The "
    "README tunes margin / beta: 0.5 with beta 2 here; Mistral-Base 0.8 at 2, the instruct models 0.1 to 0.55 at 2.5, "
    "Gemma and Llama-3-Instruct v0.2 0.3 to 0.5 at 10.",
    implementations="open-instruct and oat take the margin as a ratio to beta (0.3 and 0.5). TRL has it in its CPO "
    "trainer, with beta 0.1, a margin of 0.5 and a likelihood term on by default: pure SimPO needs cpo_alpha=0.",
    traps="Nothing holds the policy near its start but the learning rate (the README's are 3e-7 to 1e-6). A margin is "
    "in units of the logit: at another beta it is another distance.",
)

ORPO = Preset(
    PreferenceObjective(link="odds_ratio", logp="mean", reference="none", nll_coef=1.0),
    summary="fine-tuning on the chosen completion plus a small logistic loss of the log odds ratio; no reference",
    source="ORPO, Hong et al. 2403.07691, eq. 6 and 7",
    about="beta is the paper's lambda, the weight of the odds-ratio term. The odds are of the geometric mean of token "
    "probabilities, log(p / (1 - p)) with log p the mean log-prob. It takes the place of fine-tuning before "
    "preference learning.",
    implementations="TRL takes the likelihood term over prompt and completion; here it is over the completion. "
    "OpenRLHF and verl have none. Some code clamps 1 - p with an epsilon.",
    traps="At lambda 0.1 it is mostly fine-tuning on the chosen side: compare with that. Where a completion is nearly "
    "certain its odds are without bound; log-probs are kept below -1e-6.",
)
