"""The replay of cells of one arm under some objectives, as one document.

It also says which objectives can be replayed from rollouts, and what a replay cannot show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from algorithms import AnyObjective, Objective
from algorithms.objective import Overlong, Penalise, Soft
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError, UnknownNameError
from harness.records import CellRecord
from harness.shelves.replay.stored import StoredStep, read_steps
from harness.shelves.replay.summary import Bins, WeightSummary, summarise, token_shares
from harness.shelves.replay.weights import replay_step

AS_TRAINED = "as trained"


@dataclass(frozen=True)
class AlgorithmReplay:
    """The replay under one objective."""

    algorithm: str
    """The preset, or AS_TRAINED."""
    weights: WeightSummary
    remarks: list[str]
    """Warnings for the reader of the result."""

    def to_json(self) -> dict[str, object]:
        return {"algorithm": self.algorithm, **asdict(self.weights), "remarks": self.remarks}


@dataclass(frozen=True)
class ArmReplay:
    """The replay of the cells of one arm."""

    cells: list[str]
    arm: str
    steps: list[int]
    epochs: int
    updates_per_rollout: int
    log_probs: str
    """`recorded`, or `sampler` if the update's treatment of each token is not stored."""
    as_trained: str | None
    """Why the arm's own objective is left out; None if it is not."""
    token_share: dict[str, dict[str, float]]
    """The share of all sampled tokens, by kind of bin and by bin."""
    algorithms: list[AlgorithmReplay]

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"algorithms": [one.to_json() for one in self.algorithms]}


def replay_arm(
    cells: Sequence[CellRecord], algorithms: Sequence[str], steps: Sequence[range] | None = None
) -> ArmReplay:
    """Replay the stored rollouts of cells of one arm under these algorithms (presets), next to the arm's own objective.

    steps: only those in one of these ranges; None: all stored ones. Raises RefusedError, before anything is computed,
    for an unknown algorithm and one that cannot be replayed. Raises it too for cells without rollouts or with a spec of
    another version. Raises DamagedRecordError for records with gaps.
    """
    objectives = {name: find_objective(name) for name in algorithms}
    for cell, spec in zip(cells, map(recorded_spec, cells), strict=True):
        if spec.trainer.type != "bench":
            raise RefusedError("shelves.replay.trained_elsewhere", cell=cell.path.name, trainer=spec.trainer.type)
    specs = [recorded_spec(cell) for cell in cells]
    stored = [list(read_steps(cell, spec, steps)) for cell, spec in zip(cells, specs, strict=True)]
    recorded = all(step.recorded for some in stored for step in some)
    own = specs[0].objective
    left_out = reason_against(own, recorded)
    for name, objective in objectives.items():
        reason = reason_against(objective, recorded)
        if reason:
            raise RefusedError(
                "shelves.replay.cannot_be_replayed", algorithm=name, cell=cells[0].path.name, reason=reason
            )
    if isinstance(own, Objective) and left_out is None:
        objectives = {AS_TRAINED: own, **objectives}
    # One set of bins for all algorithms, so that their shares can be compared.
    every = [step for some in stored for step in some]
    bins = Bins.of(every)
    return ArmReplay(
        cells=[cell.path.name for cell in cells],
        arm=cells[0].arm,
        steps=sorted({step.step for step in every}),
        epochs=specs[0].train.epochs,
        updates_per_rollout=specs[0].train.updates_per_rollout,
        log_probs="recorded" if recorded else "sampler",
        as_trained=left_out,
        token_share=token_shares(every, bins),
        algorithms=[
            AlgorithmReplay(name, _summary(objective, stored, specs, bins), list(remarks(objective, specs[0])))
            for name, objective in objectives.items()
        ],
    )


def _summary(
    objective: Objective, stored: Sequence[Sequence[StoredStep]], specs: Sequence[RunSpec], bins: Bins
) -> WeightSummary:
    weighed = [replay_step(step, objective, spec) for some, spec in zip(stored, specs, strict=True) for step in some]
    return summarise(weighed, [step for some in stored for step in some], bins)


def find_objective(name: str) -> Objective:
    """Return a policy-gradient preset by name. Raises RefusedError for an unknown name or a preference algorithm."""
    from algorithms import preset

    try:
        objective = preset(name)
    except UnknownNameError as error:
        raise RefusedError("shelves.replay.unknown_algorithm", error=error) from None
    if not isinstance(objective, Objective):
        raise RefusedError("shelves.replay.learns_from_pairs", algorithm=name)
    return objective


def reason_against(objective: AnyObjective, recorded: bool) -> str | None:
    """Return why an objective cannot be replayed from rollouts, or None if it can.

    recorded: True if the update's treatment of each token is stored.
    """
    if not isinstance(objective, Objective):
        return "it learns from pairs, which rollouts do not hold"
    kl, select = objective.kl, objective.select.type
    if objective.baseline == "critic":
        return "its advantages need the critic's values (baseline=critic), which are not stored"
    if objective.credit == "steps":
        return "its advantages need the rewards of single steps (credit=steps), which are not stored"
    if kl.where != "none" and kl.reference != "iteration_start":
        return f"its KL needs log-probs of the reference policy (kl.reference={kl.reference}), which are not stored"
    if objective.distill.where != "none":
        return f"its teacher's log-probs (distill.where={objective.distill.where}) are not stored"
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
    """Yield what a reader of the replay must know about an objective that can be replayed."""
    own = spec.objective if isinstance(spec.objective, Objective) else None
    if _added_to_rewards(objective) != (None if own is None else _added_to_rewards(own)):
        yield (
            "rewards are those that the cell recorded; what this objective's overlong.type="
            f"{objective.overlong.type} would have added to them, or left out, is not seen"
        )
    if objective.zero_std == "refill" and (own is None or own.zero_std != "refill"):
        yield "groups of equal rewards are dropped (zero_std=refill), and no others drawn in their place"
    if objective.token_weight.depends_on_split:
        yield f"each optimiser step is one micro-batch (aggregation={objective.aggregation} depends on the split)"


def _added_to_rewards(objective: Objective) -> Overlong | None:
    """Return the knob `overlong` if it changes rewards, else None."""
    overlong = objective.overlong
    return overlong if isinstance(overlong, Soft) or (isinstance(overlong, Penalise) and overlong.penalty) else None
