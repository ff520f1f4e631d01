"""Presets of preference objectives: DPO and its relatives.

Order: links of the difference between the two log-ratios, links with a separate term for each side, and then presets
without a reference policy.
"""

from __future__ import annotations

from algorithms.preference.objective import PreferenceObjective
from algorithms.presets import Preset

DPO = Preset(
    name="dpo",
    objective=PreferenceObjective(link="logistic"),
    summary="logistic loss of the difference of log-ratios to the starting weights",
    source="DPO, Rafailov et al. 2305.18290, eq. 7",
    about="The maximum-likelihood fit of a Bradley-Terry model whose reward is beta times the log-ratio. beta 0.1 is "
    "the paper's, except for summarisation (0.5). With reference=round_start and pairs drawn anew in each round it is "
    "iterative DPO.",
    implementations="TRL (loss_type='sigmoid'), OpenRLHF, open-instruct and oat agree. TRL accepts label_smoothing "
    "with it and ignores it. verl has no trainer of this family.",
    traps="The loss falls also while the chosen completion gets less likely, as long as the rejected one falls faster: "
    "look at logps/chosen_sum. Log-ratios are sums, so long completions move the loss most and tend to get longer. A "
    "gradient of about beta / 2 per token needs learning rates well below those of fine-tuning (5e-7 to 1e-6 at 7B).",
)

DPO_NORM = Preset(
    name="dpo_norm",
    objective=PreferenceObjective(link="logistic", logp="mean", beta=5.0),
    summary="DPO on means of token log-probs instead of sums",
    source="length-normalised DPO, Tulu 3, Lambert et al. 2411.15124, section 5",
    about="Every pair counts alike whatever its length. beta 5 is Tulu 3's and open-instruct's.",
    implementations="open-instruct: dpo_norm, beta 5. TRL: loss_type='sigmoid_norm', whose beta stays at the default "
    "of 0.1, at which there is next to no gradient.",
    traps="beta is per token here: compare with dpo at beta divided by the typical length, not at the same beta.",
)

IPO = Preset(
    name="ipo",
    objective=PreferenceObjective(link="square", logp="mean"),
    summary="squared distance of the difference of mean log-ratios from 1 / (2 beta)",
    source="IPO, Azar et al. 2310.12036, eq. 17",
    about="The loss has its minimum at a finite difference, so that it goes on regularising where a pair is certain. "
    "The equation has log-probs of completions; its authors say that their results are with means over tokens. beta "
    "is the paper's tau.",
    implementations="TRL's DPO and CPO trainers take means, as here; OpenRLHF and TRL's online DPO trainer take sums "
    "(ipo_sum).",
    traps="The target of 5 nats per token at beta 0.1 is far away: means of log-ratios seldom reach 1, so the loss is "
    "nearly linear and beta is little more than a learning rate. Its gradient is not bounded.",
)

IPO_SUM = Preset(
    name="ipo_sum",
    objective=PreferenceObjective(link="square"),
    summary="IPO on summed log-probs: the difference of log-ratios is drawn to 1 / (2 beta)",
    source="IPO, Azar et al. 2310.12036, eq. 17, as written",
    about="The equation as it is in the paper, with log-probs of whole completions.",
    implementations="OpenRLHF and TRL's online DPO trainer. TRL's DPO and CPO trainers under the same name are ipo.",
    traps="The squared error grows with length: pairs of long completions have by far the largest gradients.",
)

CDPO = Preset(
    name="cdpo",
    objective=PreferenceObjective(link="logistic", label_smoothing=0.1),
    summary="DPO whose labels are right with probability 0.9 only",
    source="cDPO, Mitchell 2023, A note on DPO with noisy preferences, eq. 3; DPO 2305.18290",
    about="Cross-entropy against the smoothed label: the loss is least where sigmoid(h) is 0.9. The note gives no "
    "value; 0.1 is also robust_dpo's, so that the two compare.",
    implementations="OpenRLHF, oat and open-instruct have it as label_smoothing. TRL 1.16 accepts label_smoothing with "
    "loss_type='sigmoid' and ignores it: what runs is dpo.",
    traps="The loss cannot fall below the entropy of the label (0.33 nats at 0.1): compare accuracies, not losses.",
)

ROBUST_DPO = Preset(
    name="robust_dpo",
    objective=PreferenceObjective(link="logistic", label_smoothing=0.1, smoothing="robust"),
    summary="DPO with the loss whose mean over flipped labels is DPO's on clean ones",
    source="robust DPO, Chowdhury et al. 2403.00409",
    about="label_smoothing is the probability that a label was flipped. The loss of a flipped label is subtracted.",
    implementations="TRL: loss_type='robust', with label_smoothing=0 by default, which is dpo.",
    traps="The loss has no lower bound: with h it falls linearly, by e / (1 - 2 e). With label_smoothing above the "
    "true flip rate it pushes further than dpo.",
)

HINGE = Preset(
    name="hinge",
    objective=PreferenceObjective(link="hinge"),
    summary="hinge loss of the difference of log-ratios: nothing beyond a difference of 1 / beta",
    source="SLiC's loss on DPO's log-ratios, Liu et al. 2309.06657 (RSO), after Zhao et al. 2305.10425",
    about="Pairs that are apart by 1 / beta nats have no gradient, all others have the same. beta 0.1 is TRL's.",
    implementations="SLiC-HF itself has no reference in the hinge and adds a likelihood term (reference=none "
    "nll_coef=1). oat's SLiC and TRL's loss_type='hinge' are as here.",
    traps="Once all pairs are beyond the hinge nothing is learned: compare rewards/margin with 1.",
)

RPO = Preset(
    name="rpo",
    objective=PreferenceObjective(link="logistic", nll_coef=1.0),
    summary="DPO plus the negative log-likelihood of the chosen completion",
    source="iterative RPO, Pang et al. 2404.19733, eq. 1; the term as in Llama 3 (2407.21783), which weighs it 0.2",
    about="The second term keeps the chosen completion from getting less likely. It is the mean over the chosen tokens "
    "of the optimiser step, as in TRL.",
    implementations="TRL: loss_type=['sigmoid', 'sft']. The paper divides each completion's likelihood by its own "
    "length instead, as do OpenRLHF (nll_loss_coef) and oat (sft_weight), so that short ones count more.",
    traps="The likelihood term does not fade as pairs are told apart: after that it is fine-tuning on the chosen side. "
    "RPO is also the name of another method (2405.16436).",
)

EXO = Preset(
    name="exo",
    objective=PreferenceObjective(link="exo", label_smoothing=1e-3),
    summary="reverse KL of the policy's preference from the smoothed label, instead of DPO's forward KL",
    source="EXO, Ji et al. 2402.00856, eq. 16, for two completions",
    about="Mode-seeking where DPO is mean-seeking. The label must be smoothed, as the loss has the logarithm of its "
    "smaller probability; 0.001 is the paper's.",
    implementations="TRL: loss_type='exo_pair', which refuses a label_smoothing of 0, its default.",
    traps="Where the policy is sure of the wrong side its gradient vanishes, so it cannot repair a bad start. The "
    "smaller label_smoothing, the larger the gradient, by its logarithm: at 0.001 it starts at 3.5 times dpo's.",
)

DPOP = Preset(
    name="dpop",
    objective=PreferenceObjective(link="logistic", beta=0.3, positive_penalty=50.0),
    summary="DPO with a penalty where the chosen completion is less likely than under the reference",
    source="DPO-Positive (Smaug), Pal et al. 2402.13228, eq. 3",
    about="lambda max(0, -c) is subtracted from c - r, inside the sigmoid and under beta, as in the equation. beta 0.3 "
    "and lambda 50 are from the paper's runs.",
    implementations="oat's dpo_positive_lambda is the same, 0 by default. Other code adds the penalty to the loss, "
    "outside the sigmoid, where lambda means something else. TRL, OpenRLHF and verl have none.",
    traps="Below the reference the gradient of the chosen side is 1 + lambda times that of the rejected one: at 50 it "
    "is fine-tuning on what has fallen. A lower beta weakens the penalty too.",
)

KTO = Preset(
    name="kto",
    objective=PreferenceObjective(link="kto"),
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
    name="apo_zero",
    objective=PreferenceObjective(link="apo_zero"),
    summary="chosen above and rejected below the reference, each by a saturating sigmoid",
    source="APO-zero, D'Oosterlinck et al. 2408.06266, eq. 7",
    about="For pairs whose chosen side is better than what the policy does. Its sibling for the opposite case is "
    "link=apo_down. beta 0.1 is the paper's.",
    implementations="TRL: loss_type='apo_zero'. OpenRLHF, open-instruct, oat and verl have none.",
    traps="Both gradients vanish away from 0: a chosen completion that has fallen far is not brought back. The loss is "
    "1 at the start and between 0 and 2.",
)

SPPO_HARD = Preset(
    name="sppo_hard",
    objective=PreferenceObjective(link="sppo_hard"),
    summary="squared errors that draw the chosen log-ratio to 1 / (2 beta) and the rejected one to its negative",
    source="SPPO, Wu et al. 2405.00675, eq. 4.7, with win probabilities of 1 and 0",
    about="The paper's self-play takes win probabilities from a preference model; here the label is taken as certain. "
    "1 / beta is the paper's eta. beta 0.1 is TRL's default: targets of 5 nats.",
    implementations="TRL: loss_type='sppo_hard', on sums, as here. The authors' scripts have beta 0.001: targets of "
    "500 nats, which no completion reaches, so that it is nearly linear in the log-ratios.",
    traps="The gradient is not bounded, and at the start it is 1 / beta on each side, 2 / beta^2 times that of "
    "dpo: it needs much lower learning rates.",
)

NCA = Preset(
    name="nca",
    objective=PreferenceObjective(link="nca"),
    summary="noise contrast: the chosen log-ratio is drawn up and held, the rejected one is drawn down",
    source="NCA, Chen et al. 2402.05369, for a pair with certain labels",
    about="Unlike DPO it acts on the chosen completion's own likelihood, which keeps it from falling. beta 0.1 is "
    "TRL's default.",
    implementations="TRL: loss_type='nca_pair'. The authors' runs have a beta of 0.01 and compare more than two "
    "completions per prompt.",
    traps="The chosen side has its optimum at a finite log-ratio (log 2 / beta): rewards/chosen stops rising there by "
    "design.",
)

SIMPO = Preset(
    name="simpo",
    objective=PreferenceObjective(link="logistic", logp="mean", reference="none", beta=2.0, margin=1.0),
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
    name="orpo",
    objective=PreferenceObjective(link="odds_ratio", logp="mean", reference="none", nll_coef=1.0),
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
