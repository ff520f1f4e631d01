"""Which objectives can be replayed from rollouts, and what a replay of one cannot show."""

from __future__ import annotations

from collections.abc import Iterator

from algorithms import AnyObjective, Objective
from algorithms.knobs.overlong import Overlong, Penalise, Soft
from algorithms.overrides import nearest
from harness.errors import RefusedError
from harness.spec.run_spec import RunSpec


def find_objective(name: str) -> Objective:
    """A preset of policy gradients by name. RefusedError for an unknown name, or a preference algorithm."""
    from algorithms import preset, presets

    if name not in presets():
        raise RefusedError(f"--algorithms {name}: unknown algorithm; {nearest(name, presets('policy_gradient'))}")
    objective = preset(name)
    if not isinstance(objective, Objective):
        raise RefusedError(
            f"--algorithms {name}: learns from pairs of completions and their summed log-probs, with a reference "
            "policy's beside them; rollouts hold neither pairs nor a reference, so it has no weight on their tokens to "
            "show. Leave it out."
        )
    return objective


def reason_against(objective: AnyObjective, recorded: bool) -> str | None:
    """Why an objective cannot be replayed from rollouts; None where it can. recorded: whether what the update did with
    each token is stored."""
    if not isinstance(objective, Objective):
        return "it learns from pairs, which rollouts do not hold"
    kl, select = objective.kl, objective.select.type
    if objective.baseline == "critic":
        return "its advantages need the critic's values (baseline=critic), which are not stored"
    if objective.credit == "steps":
        return "its advantages need the rewards of single steps (credit=steps), which are not stored"
    if kl.where != "none" and kl.reference != "iteration_start":
        return f"its KL needs log-probs of the reference policy (kl.reference={kl.reference}), which are not stored"
    if objective.entropy.bonus > 0 or objective.entropy.adaptive.type != "none":
        return "its entropy bonus has a gradient through all tokens of the vocabulary, not those that were drawn alone"
    if select == "top_entropy":
        return "its choice of tokens (select.type=top_entropy) needs their entropies at each optimiser step"
    if objective.sampler_correction.type != "none" and not recorded:
        return (
            f"sampler_correction.type={objective.sampler_correction.type} compares the trainer's log-probs with the "
            "sampler's, and the trainer's are not stored"
        )
    return None


def remarks(objective: Objective, spec: RunSpec) -> Iterator[str]:
    """What a reader of the replay must know of an objective that can be replayed."""
    own = spec.objective if isinstance(spec.objective, Objective) else None
    if _added_to_rewards(objective) != (None if own is None else _added_to_rewards(own)):
        yield (
            "rewards are those that the cell recorded; what this objective's overlong.type="
            f"{objective.overlong.type} would have added to them, or left out, is not seen"
        )
    if objective.zero_std == "refill" and (own is None or own.zero_std != "refill"):
        yield "groups of equal rewards are dropped (zero_std=refill), and no others drawn in their place"
    if objective.aggregation == "micro_token_mean":
        yield "each optimiser step is one micro-batch (aggregation=micro_token_mean depends on the split)"


def _added_to_rewards(objective: Objective) -> Overlong | None:
    """The knob `overlong` where it changes rewards."""
    overlong = objective.overlong
    return overlong if isinstance(overlong, Soft) or (isinstance(overlong, Penalise) and overlong.penalty) else None
