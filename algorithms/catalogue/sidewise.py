"""Presets on pairs that say where each side should go, instead of how far apart the two should be."""

from __future__ import annotations

from algorithms.catalogue.entry import Preset
from algorithms.preference.objective import PreferenceObjective

KTO = Preset(
    PreferenceObjective(link="kto"),
    summary="prospect theory's value of each completion against a common zero point, chosen and rejected apart",
    source="KTO, Ethayarajh et al. 2402.01306, section 4",
    about="The method needs no pairs; here it sees the two sides of each pair as one desirable and one undesirable "
    "completion, and the loss is the mean over completions. The zero point z is an estimate of the KL from the "
    "reference, without gradient and at least 0. beta 0.1 and weights of 1 are TRL's.",
    implementations="TRL and OpenRLHF estimate z from completions under other prompts, averaged over the devices' "
    "micro-batches. Their older losses on pairs (kto_pair) took the z of each side from the other side instead.",
    traps="With as many desirable as undesirable completions the weights should both be 1; else TRL's docs want their "
    "ratio times that of the counts between 1 and 4/3. The loss saturates on both sides: at a high learning rate it "
    "stops with completions still on the wrong side. kl/zero_point_in_batch is not the paper's estimate.",
)

APO_ZERO = Preset(
    PreferenceObjective(link="apo_zero"),
    summary="chosen above and rejected below the reference, each by a saturating sigmoid",
    source="APO-zero, D'Oosterlinck et al. 2408.06266, eq. 7",
    about="For pairs whose chosen side is better than what the policy does. Its sibling for the opposite case is "
    "link=apo_down. beta 0.1 is the paper's.",
    implementations="TRL: loss_type='apo_zero'. OpenRLHF, open-instruct, oat and verl have none.",
    traps="Both gradients vanish away from 0: a chosen completion that has fallen far is not brought back. The loss is "
    "1 at the start and between 0 and 2.",
)

SPPO_HARD = Preset(
    PreferenceObjective(link="sppo_hard"),
    summary="squared errors that draw the chosen log-ratio to 1 / (2 beta) and the rejected one to its negative",
    source="SPPO, Wu et al. 2405.00675, eq. 4.7, with win probabilities of 1 and 0",
    about="The paper's self-play takes win probabilities from a preference model; here the label is taken as certain. "
    "1 / beta is the paper's eta. beta 0.1 is TRL's default: targets of 5 nats.",
    implementations="TRL: loss_type='sppo_hard', on sums, as here. The authors' scripts have beta 0.001: targets of "
    "500 nats, which no completion reaches, so that it is nearly linear in the log-ratios.",
    traps="The gradient is not bounded, and at the start it is 1 / beta on each side, 2 / beta^2 times that of "
    "dpo: it wants much lower learning rates.",
)

NCA = Preset(
    PreferenceObjective(link="nca"),
    summary="noise contrast: the chosen log-ratio is drawn up and held, the rejected one is drawn down",
    source="NCA, Chen et al. 2402.05369, for a pair with certain labels",
    about="Unlike DPO it acts on the chosen completion's own likelihood, which keeps it from falling. beta 0.1 is "
    "TRL's default.",
    implementations="TRL: loss_type='nca_pair'. The authors' runs have a beta of 0.01 and compare more than two "
    "completions a prompt.",
    traps="The chosen side has its optimum at a finite log-ratio (log 2 / beta): rewards/chosen stops rising there by "
    "design.",
)
