"""Presets that differ in how they estimate the advantage: from the batch, the group, a peer, or a critic."""

from __future__ import annotations

from algorithms.critic import Critic
from algorithms.kl import KlInLoss, KlInReward
from algorithms.objective import Objective
from algorithms.presets import Preset, grpo_like
from algorithms.rules.policy_gradient import PolicyGradient
from algorithms.rules.ppo_clip import PpoClip

REINFORCE = Preset(
    name="reinforce",
    objective=Objective(baseline="batch_mean", rule=PolicyGradient(), aggregation="seq_mean_token_sum"),
    summary="the plain policy gradient of the expected reward, with the batch's mean reward as baseline",
    source="REINFORCE, Williams 1992, Machine Learning 8:229",
    about="The sum over a completion's tokens makes it the gradient of the completion's log-prob. The mean includes "
    "the completion's own reward, which shrinks the gradient by (B - 1) / B.",
    implementations="Trainers that offer it mostly average over tokens instead (aggregation=token_mean).",
    traps="It has no importance ratio, so its gradient is biased from the second optimiser step after a rollout on. "
    "The gradient grows with the completion's length, so a learning rate found for a mean over tokens is too high.",
)

REINFORCE_PP = Preset(
    name="reinforce_pp",
    objective=Objective(
        scale="whiten_tokens",
        scale_eps=1e-8,
        ratio="token",
        rule=PpoClip(),
        aggregation="token_mean",
        kl=KlInReward(beta=0.01),
    ),
    summary="no group: each token's return, KL penalty included, whitened over all tokens of the batch",
    source="REINFORCE++, Hu et al. 2501.03262, token-level KL and global normalisation",
    about="The return of a token is the completion's reward minus beta times the KL of the tokens from it on (gamma "
    "1). beta 0.01 is from the authors' scripts.",
    implementations="The authors' OpenRLHF takes the std with divisor n (scale_ddof=0) and bounds the variance from "
    "below by 1e-8; verl has n - 1 and adds 1e-8 to it, as here. TRL has no such estimator: its docs map the name to "
    "RLOO with advantages standardised by completion.",
    traps="Whitening counts every token once, so long completions decide the mean and the std. Groups of equal "
    "rewards keep an advantage: easy prompts push up, hard ones down.",
)

REINFORCE_PP_BASELINE = Preset(
    name="reinforce_pp_baseline",
    objective=grpo_like(
        scale="whiten_tokens",
        scale_eps=1e-8,
        rule=PpoClip(),
        aggregation="token_mean",
        kl=KlInLoss(estimator="k2", beta=0.001),
    ),
    summary="rewards minus the group's mean, whitened over all tokens of the batch; k2 penalty in the loss",
    source="REINFORCE++-baseline, Hu et al. 2501.03262",
    about="k2 is the estimator whose gradient is the reverse KL's. beta 0.001 is from the authors' scripts.",
    implementations="OpenRLHF by default puts k1 into the token reward, after the group's mean has been subtracted; "
    "its scripts for this estimator put k2 into the loss, as here. verl takes the KL from its general settings.",
    traps="A group of equal rewards does not vanish: whitening subtracts the mean over tokens, which is not 0 where "
    "lengths differ. Such a group gets a small advantage of either sign (-0.24 for all right beside one mixed group "
    "of three).",
)

RLOO = Preset(
    name="rloo",
    objective=Objective(
        baseline="leave_one_out",
        ratio="token",
        rule=PpoClip(),
        aggregation="seq_mean_token_sum",
        kl=KlInReward(beta=0.05),
    ),
    summary="the baseline is the mean reward of the prompt's other completions; k1 penalty in the reward",
    source="RLOO, Ahmadian et al. 2402.14740; KL in the reward as in TRL",
    about="The paper's gradient is REINFORCE's on fresh samples, which is also the gradient here in the first step "
    "after a rollout; later steps are corrected by PPO's token ratio and clip, as in OpenRLHF. The KL of a completion "
    "is subtracted from its reward before the baseline; beta 0.05 is TRL's.",
    implementations="TRL clips the product ratio of the whole completion instead (ratio=sequence_product with "
    "aggregation=seq_mean_token_mean). OpenRLHF adds the KL by token after the baseline, with 0.01.",
    traps="Apart from the KL it is GRPO without std, times G / (G - 1): compared with Dr. GRPO only the size of the "
    "gradient differs. A group of one gets 0 here and its raw score in verl.",
)

OPO = Preset(
    name="opo",
    objective=Objective(baseline="length_weighted", rule=PolicyGradient(), aggregation="seq_mean_token_sum"),
    summary="the variance-optimal baseline of the group, the mean reward weighted by length; strictly on-policy",
    source="OPO, Hao et al. 2505.23585, the optimal reward baseline",
    about="The weights follow from a gradient whose squared norm grows with the number of summed tokens, hence the "
    "sum over tokens. No KL, no entropy bonus, no std.",
    implementations="verl's opo changes the advantage only: ratio, clip and a mean over tokens stay as they are set.",
    traps="It is meant for one optimiser step per rollout: it has no importance ratio.",
    companions={"train.updates_per_rollout": 1},
)

PPO = Preset(
    name="ppo",
    objective=Objective(
        baseline="critic",
        scale="whiten_tokens",
        scale_eps=1e-8,
        ratio="token",
        rule=PpoClip(),
        aggregation="token_mean",
        kl=KlInReward(beta=0.05),
        critic=Critic(),
    ),
    summary="a learned value of every token, advantages by GAE, clipped ratio, k1 penalty in the reward",
    source="PPO, Schulman et al. 1707.06347, eq. 7 and 9; GAE 1506.02438, eq. 16; for language models 2203.02155",
    about="Rewards of tokens are -beta k1, plus the completion's reward at its last token. Advantages are whitened "
    "over the batch's tokens, returns are not. gamma 1, lambda 0.95, both clips 0.2 and beta 0.05 are TRL's.",
    implementations="verl and OpenRLHF have lambda 1 and value_clip 0.5, a separate optimiser for the critic, and "
    "beta 0.001 and 0.01; verl always adds rule.dual_clip=3. TRL's value coefficient is 0.1, and it has removed its "
    "trainer.",
    traps="Until the critic explains some variance its advantages are noise: look at the explained variance first "
    "(critic.warmup_steps lets it learn alone). With one optimiser step per rollout neither clip acts. A truncated "
    "completion ends in a value of 0.",
    companions={"train.epochs": 4},
)

GPG = Preset(
    name="gpg",
    objective=Objective(baseline="group_mean", scale="nonzero_frac", rule=PolicyGradient(), aggregation="token_mean"),
    summary="the plain gradient of group-centred rewards, scaled up by the share of rewards that count",
    source="GPG, Chu et al. 2504.02546, accurate gradient estimation",
    about="No ratio, clip, KL, critic or std. The scale makes up for completions that add nothing to the gradient.",
    implementations="The paper counts the groups of equal rewards, which have no effect; verl divides by the share of "
    "rewards that are not 0, as here. The two agree only where every such group is all wrong.",
    traps="With rewards of 0 and 1 a right answer to a prompt that is always solved counts although its advantage is "
    "0, and a run whose success rate grows sees its gradient shrink. It has no importance ratio.",
    companions={"train.updates_per_rollout": 1},
)

BRPO = Preset(
    name="brpo",
    objective=Objective(baseline="random_peer", ratio="token", rule=PpoClip(), aggregation="seq_mean_token_mean"),
    summary="every completion is compared with one random member of its group; the advantage is the sign",
    source="BRPO (Writing-Zero), Jia et al. 2506.00103",
    about="A is 1, 0 or -1: better than, as good as or worse than the peer, which is the same for the whole group. "
    "Ratio, clip and aggregation are GRPO's. By default rewards are compared. The paper's generative judge is "
    "reward.parts.pairwise: it compares with the same peer, and its verdict, 1 or -1, is the advantage.",
    implementations="The authors published no trainer. The paper also skips groups in which more than 80 % of the "
    "comparisons agree.",
    traps="The advantages of a group do not sum to 0: a poor peer pushes nearly all of it up. The noise of the draw "
    "comes on top of GRPO's, so it needs more prompts for the same variance.",
)

RFT = Preset(
    name="rft",
    objective=Objective(advantage_sign="positive", rule=PolicyGradient(), aggregation="token_mean"),
    summary="likelihood of the completions that earned a reward, weighted by it; the others are left out",
    source="RFT, Yuan et al. 2308.01825; expert iteration, Anthony et al. 1705.08439, and STaR, Zelikman et al. "
    "2203.14465",
    about="Rejection-sampling fine-tuning as a policy gradient: no baseline, so that with rewards of 0 and 1 every "
    "right completion has advantage 1, and only positive advantages count. Which policy samples is another "
    "knob: rollout.sampler=initial is offline, as in the paper; rollout.sampler=round is expert iteration.",
    implementations="The papers collect a data set first, keep distinct solutions of each problem and then fine-tune "
    "for some epochs; ReST-EM (2312.06585) does so from the base model in each round. Here each rollout batch is "
    "trained on as it comes, repetitions included.",
    traps="Wrong completions stay in the denominator, so the gradient shrinks with the success rate: a prompt that is "
    "always solved counts most. Nothing is pushed down, and entropy tends to fall. A reward part that is not 0 for "
    "wrong answers (format) turns them into examples too.",
)
