"""What a sweep needs besides its files: models that are there, data that is what was pinned, held-out problems that
training does not give away."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.contamination import overlap
from evals.tasks import get_task
from evals.tasks.rows import LoadedRows
from harness.models.source import parse_source
from harness.plan import Plan
from harness.records.files import read_json, write_json
from harness.rewards.parts import find_part
from harness.run.prompt_pool import require_prompts
from harness.spec.hashing import digest


def require_inputs(plan: Plan) -> list[str]:
    """Raise RefusedError or EvalError for a missing model, missing data or too few prompts before anything starts.

    Returns remarks, e.g. that rows from the hub differ from the pinned ones.
    """
    for spec in plan.arms.values():
        source = parse_source(spec.model.source)
        if source.kind != "hf":
            source.require()
    for part in {part for spec in plan.arms.values() for part in spec.reward.parts}:
        find_part(part)
    for spec in {(spec.task, spec.rollout.prompts_per_step): spec for spec in plan.arms.values()}.values():
        require_prompts(spec)
    remarks = []
    wanted = plan.first_spec.eval.problems
    for name, split in sorted(_splits(plan)):
        rows = get_task(name).split(split).load()
        if split == "test" and wanted is not None and wanted > len(rows):
            remarks.append(
                f"{name} {split}: eval.problems is {wanted}, but there are {len(rows)}; all of them are used."
            )
        if isinstance(rows, LoadedRows) and rows.matches_pin is False:
            remarks.append(
                f"{name} {split}: the rows from {rows.origin} differ from the pinned ones (digest {rows.digest}); "
                "scores may not compare with those made from other copies."
            )
    return remarks


def contamination(plan: Plan, cache: Path) -> list[dict[str, Any]]:
    """Held-out problems of each evaluation task that occur in the training prompts, whole or by 8 words in a row.

    Cached by the fingerprints of the data: [{"task", "exact", "n_gram", "problems"}].
    """
    spec = plan.first_spec
    train = get_task(spec.task.train).split("train")
    found = []
    for task in map(get_task, spec.eval.tasks):
        held_out = task.split("test")
        key = digest([train.fingerprint, held_out.fingerprint, spec.eval.problems])
        path = cache / f"overlap-{key[:16]}.json"
        if not path.exists():
            problems = itertools.islice(held_out.load(), spec.eval.problems)
            counts = overlap((p.problem for p in train.load()), (p.problem for p in problems))
            write_json(path, {"task": task.name, **asdict(counts)})
        found.append(read_json(path))
    return found


def contamination_sentence(row: dict[str, Any]) -> str:
    return (
        f"{row['task']}: of {row['problems']} held-out problems {row['exact']} are training prompts, {row['n_gram']} "
        "share 8 words in a row with one"
    )


def _splits(plan: Plan) -> set[tuple[str, str]]:
    return {(spec.task.train, "train") for spec in plan.arms.values()} | {
        (name, "test") for spec in plan.arms.values() for name in spec.eval.tasks
    }
