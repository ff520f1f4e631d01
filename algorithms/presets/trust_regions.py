"""Presets that differ in how they keep a step near the sampling policy: ratio, rule, penalty, selection of tokens."""

from __future__ import annotations

from algorithms.objective import Objective
from algorithms.presets import Preset, grpo_like
from algorithms.rules.cispo import Cispo
from algorithms.rules.gmpo import Gmpo
from algorithms.rules.policy_gradient import PolicyGradient
from algorithms.rules.ppo_clip import PpoClip
from algorithms.rules.sapo import Sapo
from algorithms.rules.weighted import Weighted
from algorithms.selection import ClipCov, KlCov

GSPO = Preset(
    name="gspo",
    objective=grpo_like(
        ratio="sequence_mean", rule=PpoClip(clip_low=3e-4, clip_high=4e-4), aggregation="seq_mean_token_mean"
    ),
    summary="one ratio for the whole completion, the geometric mean of its tokens', clipped very tightly",
    source="GSPO, Zheng et al. 2507.18071, eq. 5 to 7",
    about="A completion is clipped as a whole. The clip range of the paper is three orders of magnitude below GRPO's, "
    "since the geometric mean hardly leaves 1.",
    implementations="verl 0.9 averages over tokens unless told otherwise, which weighs completions by length; its "
    "later versions and OpenRLHF force the mean over completions. OpenRLHF takes the sampler's log-probs as the old "
    "ones when it corrects for the sampler.",
    traps="The range belongs to completions of thousands of tokens: short ones move further, and most are clipped. "
    "Expect a clip fraction two orders of magnitude above GRPO's.",
    companions={"train.updates_per_rollout": 4},
)

CISPO = Preset(
    name="cispo",
    objective=grpo_like(rule=Cispo(weight_max=5.0), aggregation="group_token_mean", zero_std="refill"),
    summary="the ratio becomes a bounded weight without gradient, so that no token loses its gradient",
    source="CISPO (MiniMax-M1) 2506.13585, section 3.1",
    about="No lower bound, as in the paper. It does not state the upper one, 1 + eps_high: weight_max 5 lies within 4 "
    "to 8, where ScaleRL (2510.13786) finds no difference. The mean is over the tokens of each prompt's group, as in "
    "the paper. rule.mask=unified is the paper's other form, which drops tokens as PPO's clip does.",
    implementations="TRL bounds the weight by epsilon_high itself, 0.2 unless set: every token's gradient is scaled "
    "down. verl and slime have [0.8, 1.2], open-instruct at most 1.272, SkyRL [0, 5]. All average over the batch's "
    "tokens (aggregation=token_mean).",
    traps="Bounds are absolute here, not 1 +- eps. With one optimiser step per rollout (the paper takes 16) any bound "
    "above 1 does nothing. A widely copied note has a sign slip in the mask's second case.",
    companions={"train.updates_per_rollout": 16},
)

KIMI_K1_5 = Preset(
    name="kimi_k1_5",
    objective=Objective(
        baseline="group_mean", rule=PolicyGradient(), aggregation="seq_mean_token_sum", sequence_penalty=0.1
    ),
    summary="policy mirror descent: plain gradient, and a squared penalty on the completion's log-ratio",
    source="Kimi k1.5 2501.12599, section 2.3.2",
    about="The penalty pulls towards the policy at the start of the rollout; the optimiser is reset each time. The "
    "paper gives neither tau, nor the weight of the length reward, nor the number of steps per rollout. Under the "
    "penalty alone a completion's log-ratio settles at A / tau, so that tau 0.1 lets an advantage of 0.5 move a "
    "completion by 5 nats. 2 steps are the fewest at which the penalty acts.",
    implementations="OpenKimi divides by the completion's length and has tau 0.01; ROLL (tau 0.1) and verl's dro "
    "square the log-ratio of each token, which drops the cross terms; prime-rl's default is a later recipe.",
    traps="With one optimiser step per rollout the penalty's gradient is 0 and this is REINFORCE with a group mean. "
    "The penalty grows with the square of the summed log-ratio: long completions feel it first.",
    companions={
        "train.updates_per_rollout": 2,
        "train.optimizer_reset": "per_rollout",
        "reward.parts.kimi_length": 1.0,
        "task.order": "prioritised",
    },
)

SAPO = Preset(
    name="sapo",
    objective=grpo_like(rule=Sapo(), aggregation="seq_mean_token_mean"),
    summary="GRPO with a soft gate in place of the clip: the gradient fades as the ratio leaves 1",
    source="SAPO, Gao et al. 2511.20347",
    about="The gate's slope is 1 at ratio 1 whatever its temperature; it falls faster for A <= 0 (1.05 against 1).",
    implementations="verl and TRL agree with this.",
    traps="At temperatures near 1 the gate is wide: it halves the unclipped gradient only at a ratio of about 2.8. "
    "With one optimiser step per rollout it is GRPO.",
)

GMPO = Preset(
    name="gmpo",
    objective=grpo_like(ratio="sequence_mean", rule=Gmpo(), aggregation="seq_mean_token_mean"),
    summary="the geometric mean of the tokens' ratios, each clipped before the mean",
    source="GMPO, Zhao et al. 2507.20673",
    about="One term for each completion. A token's log-ratio is clipped at +-0.4 on the side towards which the "
    "advantage pushes, so single tokens are held while the completion keeps its gradient.",
    implementations="verl 0.9.1 averages over the micro-batch and forgets to divide by their number: its gradient is "
    "too large by that factor.",
    traps="It is not GSPO with a wider clip: there the mean is clipped, here the tokens are. At ratio 1 the two have "
    "one gradient.",
)

CLIP_COV = Preset(
    name="clip_cov",
    objective=grpo_like(
        rule=PpoClip(clip_low=1.0, clip_high=1.0), select=ClipCov(), aggregation="token_mean", zero_std="refill"
    ),
    summary="random tokens of high covariance of advantage and log-prob lose their gradient",
    source="Clip-Cov, Cui et al. 2505.22617, section 4",
    about="The clip range 0 to 2 is from the authors' scripts: the covariance rule is meant to replace the clip.",
    implementations="The authors' code and verl choose within each micro-batch, so that the choice depends on its "
    "size; here it is over the whole optimiser step.",
    traps="2 tokens of 10,000: in a small batch one or none. The thresholds 1 and 5 are in units of standardised "
    "advantage times nats: other scales select nothing.",
)

KL_COV = Preset(
    name="kl_cov",
    objective=grpo_like(rule=Weighted(), select=KlCov(), aggregation="token_mean", zero_std="refill"),
    summary="the tokens of highest covariance of advantage and log-prob get a penalty on their log-ratio; no clip",
    source="KL-Cov, Cui et al. 2505.22617, section 4",
    about="Nothing else bounds the ratio. The authors take several steps per rollout; 2 are the fewest at which the "
    "penalty acts.",
    implementations="verl's configuration has coef 0.1 where the paper and the authors' code have 1. Both choose "
    "within each micro-batch; here it is over the whole optimiser step.",
    traps="With one optimiser step per rollout the penalty is exactly 0, in value and gradient. But where two passes "
    "round a log-prob differently, as a GPU does, |log r| has a slope of -1 or 1 at random before the first step.",
    companions={"train.updates_per_rollout": 2},
)
