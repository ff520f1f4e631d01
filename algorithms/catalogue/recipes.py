"""Recipes of published reasoning models: GRPO with several knobs moved together."""

from __future__ import annotations

from algorithms.catalogue.entry import Preset
from algorithms.knobs.entropy import Entropy, StepBothWays
from algorithms.knobs.overlong import MaskAfter
from algorithms.knobs.rule import PolicyGradient, PpoClip
from algorithms.objective import Objective

MAGISTRAL = Preset(
    Objective(
        baseline="group_mean",
        scale="mini_batch_std",
        ratio="token",
        rule=PpoClip(clip_high=0.28),
        aggregation="group_token_mean",
        zero_std="drop",
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
    Objective(
        baseline="group_mean",
        scale="group_std",
        ratio="token",
        rule=PpoClip(),
        aggregation="token_mean",
        entropy=Entropy(adaptive=StepBothWays()),
        zero_std="drop",
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
    Objective(
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
