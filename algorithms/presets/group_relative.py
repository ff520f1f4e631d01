"""GRPO, variants that differ from it in one or two knobs, and recipes of reasoning models that change several."""

from __future__ import annotations

from algorithms.entropy import Entropy, StepBothWays
from algorithms.objective import MaskAfter, Objective, Soft
from algorithms.presets import Preset, grpo_like
from algorithms.rules.cispo import Cispo
from algorithms.rules.policy_gradient import PolicyGradient
from algorithms.rules.ppo_clip import PpoClip

GRPO = Preset(
    name="grpo",
    objective=grpo_like(rule=PpoClip(), aggregation="seq_mean_token_mean"),
    summary="rewards standardised within the group of one prompt, PPO's clip, mean over completions",
    source="GRPO (DeepSeekMath), Shao et al. 2402.03300, eq. 3",
    about="The paper's KL penalty in the loss is available but off, as in most later work: objective.kl.where=loss "
    "objective.kl.estimator=k3 objective.kl.beta=0.04 (DeepSeek-R1: 0.001) turns it on. Its process supervision is "
    "objective.credit=steps.",
    implementations="TRL and verl default to aggregation=token_mean under this name, and verl adds rule.dual_clip=3. "
    "open-instruct and nano-aha-moment divide by n in the std (scale_ddof=0); 1e-4 to 1e-9 is added to it. TRL "
    "multiplies k3 by the ratio (kl.estimator=k3_ratio).",
    traps="Dividing by the std weighs prompts that are nearly always or nearly never solved most. The mean over a "
    "completion's tokens lets long wrong answers lose little. With one optimiser step per rollout, as in the paper, "
    "the clip range cannot act.",
    companions={"train.updates_per_rollout": 1},
)

DR_GRPO = Preset(
    name="dr_grpo",
    objective=Objective(baseline="group_mean", ratio="token", rule=PpoClip(), aggregation="constant_length"),
    summary="GRPO without its two divisions: by the group's std and by the completion's length",
    source="Dr. GRPO, Liu et al. 2503.20783, section 3.2",
    about="Token losses are summed and divided by rollout.max_completion_tokens, a constant.",
    implementations="The authors' oat does the same. OpenRLHF's dr_grpo drops only the std; an AReaL example of this "
    "name puts a std over the batch back; TRL needs scale_rewards='none' besides loss_type='dr_grpo'.",
    traps="The constant makes the gradient smaller by about the mean share of the limit that completions use, and a "
    "higher limit makes it smaller still: compare at matched gradient norm, or retune the learning rate.",
    companions={"train.updates_per_rollout": 8},
)

DAPO = Preset(
    name="dapo",
    objective=grpo_like(rule=PpoClip(clip_high=0.28), aggregation="token_mean", overlong=Soft(), zero_std="refill"),
    summary="GRPO with a higher upper clip, the mean over tokens, dynamic sampling and a soft length punishment",
    source="DAPO, Yu et al. 2503.14476, eq. 8 to 13",
    about="Groups that are all right or all wrong are replaced by new prompts until the batch is full. The punishment "
    "is added to the reward; the paper's is +-1 for correctness, so with rewards of 0 and 1 it weighs twice as much.",
    implementations="The equation divides by the tokens of the prompt's group, the authors' code (verl) by those of "
    "the batch, as here (the paper's: aggregation=group_token_mean). Their script adds rule.dual_clip=10.",
    traps="Refilling spends generated tokens on prompts that are thrown away: compare at equal tokens, not at equal "
    "steps. clip_high acts only from the second optimiser step after a rollout on (the paper takes 16).",
    companions={"train.updates_per_rollout": 16, "train.warmup_steps": 20},
)

BNPO = Preset(
    name="bnpo",
    objective=grpo_like(rule=PpoClip(), aggregation="micro_token_mean"),
    summary="GRPO with the mean over the tokens of each micro-batch",
    source="TRL, loss_type='bnpo'",
    about="What trainers computed before they divided by the optimiser step's tokens. It is here to measure what that "
    "does.",
    implementations="TRL adds 1e-4 to the std. The paper named BNPO (2506.02864) is about another normalisation, of "
    "rewards.",
    traps="It depends on how an optimiser step is split (train.micro_batch_tokens): tokens in a micro-batch of short "
    "completions count more. No other preset does.",
)

LITE_PPO = Preset(
    name="lite_ppo",
    objective=grpo_like(scale="batch_std", rule=PpoClip(), aggregation="token_mean"),
    summary="group mean, std of the whole batch's raw rewards, mean over tokens; nothing else",
    source="LitePPO (Tricks or Traps), Liu et al. 2508.08221, section 5",
    about="The two tricks that the paper found to matter for base models, on top of PPO's clip without a critic.",
    implementations="TRL: scale_rewards='batch', loss_type='dapo'. An AReaL example of this name normalises twice; "
    "ROLL's documentation shows a critic under it.",
    traps="The std is over raw rewards: it includes the spread between prompts, so it never vanishes as a group's "
    "does, and changes with the success rate of the batch.",
)

MAGISTRAL = Preset(
    name="magistral",
    objective=grpo_like(
        scale="mini_batch_std", rule=PpoClip(clip_high=0.28), aggregation="group_token_mean", zero_std="drop"
    ),
    summary="group-centred rewards divided by their std over the optimiser step; mean over each group's tokens",
    source="Magistral 2506.10910, section 2",
    about="No KL, groups of equal rewards filtered. clip_high is tuned between 0.26 and 0.28 in the paper. A penalty "
    "on length grows to 0.1 at the limit.",
    implementations="The trainer is not public.",
    traps="The std is of centred rewards within the optimiser step, not LitePPO's of raw rewards in the batch: it "
    "depends on train.updates_per_rollout. Where all of a step's groups are equal it takes no step.",
    companions={"reward.parts.magistral_length": 1.0},
)

SKYWORK_OR1 = Preset(
    name="skywork_or1",
    objective=grpo_like(
        rule=PpoClip(), aggregation="token_mean", entropy=Entropy(adaptive=StepBothWays()), zero_std="drop"
    ),
    summary="GRPO with the mean over tokens and an entropy bonus that is steered to 0.2 nats",
    source="Skywork-OR1, He et al. 2505.22312, section 3 and eq. 3.2",
    about="The coefficient starts at 0, moves by 0.005 a rollout batch, and is applied only while the entropy is at "
    "or below its target.",
    implementations="The authors' scripts move it by 1e-4 and at most to 0.005, compare with `<`, and steer by the "
    "sampled entropy while the bonus is of the full one. TRL lags one step behind. The authors' loss averages over "
    "micro-batches.",
    traps="0.2 nats is for a model that thinks at length; a policy that starts above it never gets a bonus. TRL's "
    "docs speak of 2 to 10 nats and a target of 5: not the paper's. Fixed coefficients of 1e-4 collapsed and 5e-4 "
    "exploded.",
    companions={"train.updates_per_rollout": 1, "rollout.temperature": 1.0},
)

ACE_REASON = Preset(
    name="ace_reason",
    objective=Objective(
        baseline="group_mean",
        scale="group_std",
        rule=PolicyGradient(),
        aggregation="token_mean",
        overlong=MaskAfter(),
    ),
    summary="strictly on-policy GRPO without ratio, mean over tokens, truncated completions out of the loss",
    source="AceReason-Nemotron 1.1, Liu et al. 2506.13284, overlong filtering",
    about="The truncated completions still count in the group's mean and std.",
    implementations="The paper filters truncated completions in its 8K stage only and keeps them at 32K. It describes "
    "this also as not using them for the reward, which would be overlong.type=mask_before.",
    traps="Filtering helps where about a third is truncated and hurts where few are: the policy is never told that "
    "running out of room is wrong. It has no importance ratio.",
    companions={"train.updates_per_rollout": 1},
)

SCALE_RL = Preset(
    name="scalerl",
    objective=grpo_like(
        scale="mini_batch_std", rule=Cispo(weight_max=5.0), aggregation="group_token_mean", zero_std="drop"
    ),
    summary="CISPO's bounded weight, group-centred rewards over their std in the step, equal groups dropped",
    source="ScaleRL, Khatri et al. 2510.13786",
    about="The weight is bounded at 5; the paper finds no difference within 4 to 8. Each prompt counts equally, by the "
    "mean over its group's tokens. The paper samples with a pipeline (PipelineRL-8) whose weights change while "
    "completions are under way and whose trainer is at most 8 steps ahead: rollout.partial, with slices of an eighth "
    "of max_completion_tokens. It computes logits in float32: model.head_dtype, where model.dtype is not float32 "
    "anyway. It also ends thoughts that are too long with a phrase of its own, which is no knob here.",
    implementations="TRL's recipe of this name divides by the std of the raw rewards (scale=batch_std). The paper's "
    "ratio is to the engine that samples, and so includes what engine and trainer round differently: "
    "objective.sampler_correction.type=in_ratio.",
    traps="Prompts whose completions are all right or all wrong are dropped and not replaced: batches shrink as the "
    "policy improves. With one optimiser step per rollout and fresh samples the weight's bound "
    "cannot act.",
    companions={
        "rollout.samples_per_prompt": 16,
        "rollout.partial.type": "slices",
        "model.head_dtype": "float32",
        "task.retire_at": 0.9,
    },
)
