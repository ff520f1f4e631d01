"""Presets that treat the tokens of highest covariance of advantage and log-prob apart, to slow the fall of entropy."""

from __future__ import annotations

from algorithms.catalogue.entry import Preset
from algorithms.knobs.rule import PpoClip, Weighted
from algorithms.knobs.select import ClipCov, KlCov
from algorithms.objective import Objective

CLIP_COV = Preset(
    Objective(
        baseline="group_mean",
        scale="group_std",
        ratio="token",
        rule=PpoClip(clip_low=1.0, clip_high=1.0),
        select=ClipCov(),
        aggregation="token_mean",
        zero_std="refill",
    ),
    summary="random tokens of high covariance of advantage and log-prob lose their gradient",
    source="Clip-Cov, Cui et al. 2505.22617, section 4",
    about="The clip range 0 to 2 is that of the authors' scripts: the covariance rule is meant to take the clip's "
    "place.",
    implementations="The authors' code and verl choose within each micro-batch, so that the choice depends on its "
    "size; here it is over the whole optimiser step. verl adds rule.dual_clip=3.",
    traps="2 tokens of 10,000: in a small batch one or none. The thresholds 1 and 5 are in units of standardised "
    "advantage times nats: other scales select nothing.",
)

KL_COV = Preset(
    Objective(
        baseline="group_mean",
        scale="group_std",
        ratio="token",
        rule=Weighted(),
        select=KlCov(),
        aggregation="token_mean",
        zero_std="refill",
    ),
    summary="the tokens of highest covariance of advantage and log-prob get a penalty on their log-ratio; no clip",
    source="KL-Cov, Cui et al. 2505.22617, section 4",
    about="Nothing else bounds the ratio. The authors take several steps per rollout; 2 are the fewest at which the "
    "penalty acts.",
    implementations="verl's configuration has coef 0.1 where the paper and the authors' code have 1. Both choose "
    "within each micro-batch; here it is over the whole optimiser step.",
    traps="With one optimiser step per rollout the penalty is exactly 0, in value and gradient.",
    companions={"train.updates_per_rollout": 2},
)
