"""The replay of some cells under some objectives, as one document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from algorithms import Objective
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.replay.refusals import find_objective, reason_against, remarks
from harness.replay.stored import StoredStep, read_steps
from harness.replay.summary import Bins, summarise, token_shares
from harness.replay.weights import replay_step
from harness.spec.recorded import recorded_spec
from harness.spec.run_spec import RunSpec

AS_TRAINED = "as trained"


def replay_arm(
    cells: Sequence[CellRecord], algorithms: Sequence[str], steps: Sequence[range] | None = None
) -> dict[str, Any]:
    """What the algorithms (presets as they are) would have done with the stored rollouts of cells of one arm, and what
    the arm's own objective did; steps: only those in one of these ranges; none: all that are stored.

    Raises RefusedError, before anything is computed, for an unknown algorithm, one that cannot be replayed, and cells
    without rollouts or whose spec another version wrote; DamagedRecordError for records with gaps.
    """
    objectives = {name: find_objective(name) for name in algorithms}
    specs = [recorded_spec(cell) for cell in cells]
    stored = [list(read_steps(cell, spec, steps)) for cell, spec in zip(cells, specs, strict=True)]
    recorded = all(step.recorded for some in stored for step in some)
    own = specs[0].objective
    left_out = reason_against(own, recorded)
    for name, objective in objectives.items():
        reason = reason_against(objective, recorded)
        if reason:
            raise RefusedError(
                f"--algorithms {name}: cannot be replayed on {cells[0].path.name}: {reason}. Leave it out."
            )
    if isinstance(own, Objective) and left_out is None:
        objectives = {AS_TRAINED: own, **objectives}
    every = [step for some in stored for step in some]
    bins = Bins.of(every)
    return {
        "cells": [cell.path.name for cell in cells],
        "arm": cells[0].arm,
        "steps": sorted({step.step for step in every}),
        "epochs": specs[0].train.epochs,
        "updates_per_rollout": specs[0].train.updates_per_rollout,
        "log_probs": "recorded" if recorded else "sampler",
        "as_trained": left_out,
        "token_share": token_shares(every, bins),
        "algorithms": [
            {"algorithm": name, **_one(objective, stored, specs, bins), "remarks": list(remarks(objective, specs[0]))}
            for name, objective in objectives.items()
        ],
    }


def _one(
    objective: Objective, stored: Sequence[Sequence[StoredStep]], specs: Sequence[RunSpec], bins: Bins
) -> dict[str, Any]:
    weighed = [replay_step(step, objective, spec) for some, spec in zip(stored, specs, strict=True) for step in some]
    return summarise(weighed, [step for some in stored for step in some], bins)
