"""Distillation: learning from a teacher's completions, or from its next-token distribution."""

from __future__ import annotations

from algorithms.distillation import DistillInLoss, DistillInReward
from algorithms.objective import Objective
from algorithms.presets import Preset
from algorithms.rules.policy_gradient import PolicyGradient, Supervised
from algorithms.rules.weighted import Weighted

SFT = Preset(
    name="sft",
    objective=Objective(rule=Supervised(), aggregation="token_mean"),
    summary="supervised fine-tuning on all sampled completions, right or wrong; meant for a teacher's samples",
    source="sequence-level knowledge distillation, Kim and Rush 1606.07947, section 3.2",
    about="Cross entropy, averaged over the tokens of the step. Another knob says who wrote the completions: "
    "rollout.sampler=teacher is sequence-level distillation, rollout.sampler=given is fine-tuning on the task's own "
    "solutions. `rft` with rollout.sampler=teacher does the same with the right completions only.",
    implementations="Kim and Rush train on the teacher's beam search. Most recipes for reasoning models (DeepSeek-R1, "
    "2501.12948, section 2.4) train several epochs on a fixed set of samples, filtered by a verifier. Here every step "
    "draws new ones.",
    traps="With rollout.sampler=policy the model learns its own samples: the expected gradient is 0 and only noise is "
    "left. A falling loss does not mean that the student performs better, because it never sees its own mistakes.",
    companions={"rollout.sampler": "teacher"},
)

KD = Preset(
    name="kd",
    objective=Objective(
        rule=PolicyGradient(), aggregation="token_mean", distill=DistillInLoss(verifier_coef=0.0, beta=0.0)
    ),
    summary="forward KL to the teacher's distribution at every token, on completions of the teacher or given ones",
    source="Hinton et al. 1503.02531; word-level knowledge distillation, Kim and Rush 1606.07947, section 3.1",
    about="KL(teacher || student) over the vocabulary, averaged over the tokens of the step. Its gradient is that of "
    "cross entropy with the teacher's probabilities as soft labels: like `sft` on the teacher's samples, without the "
    "noise of sampling each token.",
    implementations="Hinton et al. multiply by the square of the temperature and mix with cross entropy on the labels "
    "(rule.type=supervised adds it here). With top_k, TRL 1.16's server_distillation lumps the other tokens into one "
    "outcome, as here; its sdft leaves them out unless distillation_add_tail is set.",
    traps="The forward KL is mode-covering: a student too small to match the teacher spreads its probability over "
    "tokens that neither should write. The teacher's completions never show the student its own mistakes; "
    "rollout.sampler=policy does.",
    companions={"rollout.sampler": "teacher"},
)

GKD = Preset(
    name="gkd",
    objective=Objective(rule=PolicyGradient(), aggregation="token_mean", distill=DistillInLoss(verifier_coef=0.0)),
    summary="generalised Jensen-Shannon divergence to the teacher, on completions of both",
    source="GKD, Agarwal et al. 2306.13649, eq. 1 and algorithm 1",
    about="beta 0.5 is TRL's; the paper tries 0 (forward KL), 0.1, 0.5, 0.9 and 1 (reverse KL) and finds that the "
    "best value depends on the task. Its lambda is rollout.policy_frac: the student writes that share of the "
    "completions, the teacher or the data the rest. distill.verifier_coef above 0 adds reinforcement learning "
    "(section 3.2).",
    implementations="TRL's DistillationTrainer uses the reverse KL by default. Its experimental.gkd (1.16) draws the "
    "student's completions at temperature 0.9, decides per batch who writes, and does not pass its temperature to the "
    "loss. No gradient flows through the sampling, neither in the paper nor here.",
    traps="For beta between 0 and 1 the divergence is at most log 2 and vanishes towards both ends, but at exactly 0 "
    "and 1 it is an unbounded KL. So a beta of 0.01 has about a hundredth of the gradient of 0. Compare values at "
    "equal gradient norm, or tune the learning rate for each.",
    companions={"rollout.sampler": "teacher", "rollout.policy_frac": 0.5},
)

OPD = Preset(
    name="opd",
    objective=Objective(
        ratio="token", rule=Weighted(), aggregation="token_mean", distill=DistillInReward(verifier_coef=0.0)
    ),
    summary="on-policy distillation: the reward of every token of the student is log p_teacher - log p_student",
    source="On-Policy Distillation, Lu and Thinking Machines Lab 2025; MiniLLM, Gu et al. 2306.08543",
    about="A policy gradient whose advantages are per-token log-ratios (discount 0). Its expectation is the gradient "
    "of each token's reverse KL, estimated from one sampled token instead of the whole vocabulary. "
    "distill.verifier_coef=1 with a group baseline adds the verifier's advantages.",
    implementations="Tinker's cookbook and slime subtract the same log-ratio from the advantages of any estimator, "
    "after normalisation, as here. prime-rl weights the two (adv_tau, teacher_tau), and an example in rLLM clips the "
    "log-ratio to +-5. MiniLLM also credits all later tokens (distill.discount=1), normalises by length, and samples "
    "from a mixture with the teacher. `gkd` with a beta of 1 sums over the vocabulary instead of sampling.",
    traps="The log-ratio has no lower bound: a token that the teacher would never write has an advantage of -20 or "
    "less, a single such token can dominate the gradient, and gradient clipping acts in many steps. Off its own "
    "distribution, the teacher's log-probs say little. Tokens that the student never samples are never taught.",
)
