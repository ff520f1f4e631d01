"""Distillation: learning from a teacher's completions, or from its distribution over the next token."""

from __future__ import annotations

from algorithms.distillation import DistillInLoss, DistillInReward
from algorithms.objective import Objective
from algorithms.presets import Preset
from algorithms.rules.policy_gradient import PolicyGradient, Supervised
from algorithms.rules.weighted import Weighted

SFT = Preset(
    name="sft",
    objective=Objective(rule=Supervised(), aggregation="token_mean"),
    summary="likelihood of all completions that are sampled, right or wrong; made for those of a teacher",
    source="sequence-level knowledge distillation, Kim and Rush 1606.07947, section 3.2",
    about="Cross entropy, a mean over the tokens of the step. Who wrote the completions is another knob: "
    "rollout.sampler=teacher is distillation, rollout.sampler=given fine-tuning on the task's own solutions. The same "
    "on the right completions alone is `rft` with rollout.sampler=teacher.",
    implementations="Kim and Rush train on the teacher's beam search, most recipes of reasoning models (DeepSeek-R1, "
    "2501.12948, section 2.4) on a fixed set of its samples for several epochs, filtered by a verifier. Here every "
    "step draws new ones.",
    traps="With rollout.sampler=policy it learns its own samples: the gradient is 0 in the mean, and noise is left. A "
    "loss that falls does not say that the student acts better: it never sees its own mistakes.",
    companions={"rollout.sampler": "teacher"},
)

KD = Preset(
    name="kd",
    objective=Objective(
        rule=PolicyGradient(), aggregation="token_mean", distill=DistillInLoss(verifier_coef=0.0, beta=0.0)
    ),
    summary="forward KL to the teacher's distribution at every token, on completions of the teacher or given ones",
    source="Hinton et al. 1503.02531; word-level knowledge distillation, Kim and Rush 1606.07947, section 3.1",
    about="KL(teacher || student) over the vocabulary, a mean over the tokens of the step. Its gradient is that of "
    "cross entropy with the teacher's probabilities for labels: `sft` on the teacher's samples without the noise of "
    "sampling each token.",
    implementations="Hinton et al. multiply by the square of the temperature and mix with cross entropy on the labels "
    "(rule.type=supervised adds it here). With the teacher's top k alone, TRL 1.16's server_distillation takes the "
    "rest for one more outcome, as here; its sdft leaves the rest out unless distillation_add_tail is set.",
    traps="It covers all that the teacher may say, so that a student too small for it spreads over what neither would "
    "say. Completions of the teacher show the student none of its own mistakes; rollout.sampler=policy does.",
    companions={"rollout.sampler": "teacher"},
)

GKD = Preset(
    name="gkd",
    objective=Objective(rule=PolicyGradient(), aggregation="token_mean", distill=DistillInLoss(verifier_coef=0.0)),
    summary="generalised Jensen-Shannon divergence to the teacher, on completions of both",
    source="GKD, Agarwal et al. 2306.13649, eq. 1 and algorithm 1",
    about="beta 0.5 is TRL's; the paper tries 0 (forward KL), 0.1, 0.5, 0.9 and 1 (reverse KL) and finds that the "
    "best depends on the task. Its lambda is rollout.policy_frac: the student writes that share of the completions, "
    "and the teacher or the data the rest. distill.verifier_coef above 0 adds reinforcement learning (section 3.2).",
    implementations="TRL's DistillationTrainer has the reverse KL for its default. Its experimental.gkd (1.16) draws "
    "the student's completions at temperature 0.9, decides for whole batches who writes them, and does not pass its "
    "temperature on to the loss. No gradient flows through the sampling, in the paper and here.",
    traps="Between 0 and 1 the divergence is at most log 2 and shrinks with beta towards both ends, while at 0 and 1 "
    "itself it is a KL without a bound: near 0 a beta of 0.01 has a hundredth of the gradient of 0. Compare at "
    "matched gradient norm, or tune the learning rate of each.",
    companions={"rollout.sampler": "teacher", "rollout.policy_frac": 0.5},
)

OPD = Preset(
    name="opd",
    objective=Objective(
        ratio="token", rule=Weighted(), aggregation="token_mean", distill=DistillInReward(verifier_coef=0.0)
    ),
    summary="on-policy distillation: every token of the student earns log p_teacher - log p_student",
    source="On-Policy Distillation, Lu and Thinking Machines Lab 2025; MiniLLM, Gu et al. 2306.08543",
    about="A policy gradient whose advantages are log-ratios of single tokens, discount 0: in the mean it is the "
    "gradient of the reverse KL of each token, from one sample instead of the vocabulary. distill.verifier_coef=1 "
    "with a group baseline adds the verifier's advantages.",
    implementations="Tinker's cookbook and slime subtract the same log-ratio from the advantages of any estimator, "
    "after their normalisation, as here; prime-rl weighs the two (adv_tau, teacher_tau), and an example of rLLM's "
    "clips the log-ratio to +-5. MiniLLM counts all later tokens too (distill.discount=1), normalises by length, and "
    "samples from a mixture with the teacher. `gkd` with a beta of 1 sums over the vocabulary instead of sampling.",
    traps="The log-ratio has no bound below: a token that the teacher would never write has an advantage of -20 or "
    "less, one such token can be the whole gradient, and gradient clipping acts in many steps. Where the teacher has "
    "not been on the student's path its log-probs say little. What the student never samples it is never taught.",
)
