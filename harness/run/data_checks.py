"""Checks before the first cell: models and data exist, rows are those that were used before, held-out problems do not
occur in training prompts, and every prompt leaves room for its completion in the model's context."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.contamination import VERSION as CONTAMINATION_VERSION
from evals.contamination import Overlap, is_contaminated, overlap
from evals.pairs import parse_pair_source
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Task
from evals.tasks.rows import LoadedRows
from harness.config.hashing import digest
from harness.config.model_source import parse_source
from harness.config.rollout import DatasetPairs
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.plan import Plan
from harness.records.files import read_json, write_json
from harness.rewards.total import is_reference, load_function
from harness.run.prompts import candidates, require_prompts, reward_model_prompts

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel


def require_models_and_data(plan: Plan) -> list[str]:
    """Raise RefusedError or EvalError for a missing model, missing or faulty data, or too few prompts.

    Returns remarks, e.g. that rows from the hub differ from the pinned ones.
    """
    for spec in plan.arms.values():
        source = parse_source(spec.model.source)
        if source.kind != "hf":
            source.require()
    for part in {part for spec in plan.arms.values() for part in spec.reward.parts}:
        if is_reference(part):
            load_function(part)
    specs = plan.arms.values()
    for spec in {(spec.task, spec.rollout.prompts_per_step): spec for spec in specs if not _fixed(spec)}.values():
        require_prompts(spec)
    for spec in specs:
        if spec.reward.needs_reward_model and not _fixed(spec):
            reward_model_prompts(spec)
    for pairs in {spec.pairs for spec in specs}:
        if isinstance(pairs, DatasetPairs):
            parse_pair_source(pairs.data, pairs.split).load()
    remarks = []
    wanted = plan.first_spec.eval.problems
    for name, split in sorted(_splits(plan)):
        task = get_task(name)
        rows = task.split(split).load()
        if (
            split == "test" and wanted is not None and (task.n_evaluated(wanted) or 0) > len(rows)
        ):  # else the plan warns
            remarks.append(
                f"{name} {split}: eval.problems is {wanted}, but there are {len(rows)}; all of them are used."
            )
        if isinstance(rows, LoadedRows) and rows.warning:
            remarks.append(f"{name} {split}: {rows.warning}")
    return remarks


def record_source(cache: Path, task: Task, split: str) -> dict[str, Any] | None:
    """The origin of a split's rows, recorded when they are first used: {"task", "split", "rows",
    **LoadedRows.account}; None for generated problems.

    Raises RefusedError if the origin, such as an unpinned data set of the hub, now gives other rows.
    """
    rows = task.split(split).load()
    if not isinstance(rows, LoadedRows):
        return None
    now = {"task": task.name, "split": split, "rows": len(rows), **rows.account}
    path = _source_file(cache, task, split)
    before: list[dict[str, Any]] = read_json(path) if path.exists() else []
    first = next((one for one in before if one["origin"] == rows.origin), None)
    if first is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, [*before, now])
    elif first["digest"] != rows.digest:
        raise RefusedError(
            f"{task.name} {split}: {rows.origin} has the digest {rows.digest}, but had {first['digest']} when it was "
            f"first used (recorded in {path}). Restore the rows, or give the new ones a task file of their own name: "
            "scores on the two do not compare."
        )
    return now


def record_sources(plan: Plan, cache: Path) -> None:
    """Record the source of every split that a plan trains or evaluates on. Raises as `record_source`."""
    for name, split in sorted(_splits(plan)):
        record_source(cache, get_task(name), split)


def data_sources(plan: Plan, cache: Path) -> list[dict[str, Any]]:
    """The recorded sources of a plan's splits, an entry for each origin."""
    paths = (_source_file(cache, get_task(name), split) for name, split in sorted(_splits(plan)))
    return [source for path in paths if path.exists() for source in read_json(path)]


def _source_file(cache: Path, task: Task, split: str) -> Path:
    return cache / f"rows-{digest([task.name, split, task.split(split).fingerprint])[:16]}.json"


def contamination(plan: Plan, cache: Path) -> list[dict[str, Any]]:
    """Held-out problems of each evaluation task that occur in the training prompts of an arm, whole or by 8 words in a
    row.

    Cached by the fingerprints of the data: [{"task", "contaminated", **fields of evals.contamination.Overlap}]. Empty
    where nothing is trained.
    """
    if plan.request.checkpoint is not None:
        return []
    evaluated = plan.first_spec.eval
    found = []
    for task in map(get_task, evaluated.tasks):
        held_out = task.split("test")
        trained_on = {_training_fingerprint(spec): spec for spec in plan.arms.values()}
        key = digest([CONTAMINATION_VERSION, *sorted(trained_on), held_out.fingerprint, evaluated.problems])
        path = cache / f"overlap-{key[:16]}.json"
        if not path.exists():
            problems = itertools.islice(held_out.load(), evaluated.problems)
            prompts = (prompt for spec in trained_on.values() for prompt in training_texts(spec))
            found_here = overlap(prompts, ((p.id, p.problem) for p in problems))
            write_json(path, overlap_row(task.name, found_here))
        found.append(read_json(path))
    return found


def overlap_row(task: str, found: Overlap) -> dict[str, Any]:
    """A task's overlap, as it is recorded."""
    return {"task": task, "contaminated": is_contaminated(found), **asdict(found)}


def contamination_sentence(row: dict[str, Any]) -> str:
    """A task's overlap in one line; a warning that lists the rows where there is contamination."""
    sentence = (
        f"{row['task']}: of {row['problems']} held-out problems {row['exact']} are training prompts, "
        f"{row['near_copies']} nearly, {row['n_gram']} share 8 words in a row with one"
    )
    if not row["contaminated"]:
        return sentence
    rows = [
        f"  {one['problem']} is {'in' if one['kind'] == 'near_copy' else 'training prompt'} {one['prompt']}"
        for one in row["examples"]
        if one["kind"] != "n_gram"
    ]
    return "\n".join([f"warning: {sentence}", *rows])


def _fixed(spec: RunSpec) -> bool:
    """Whether nothing is drawn in training: it is on a fixed set of pairs, or there is none."""
    return spec.pairs.type == "dataset" or spec.checkpoint is not None


def _training_fingerprint(spec: RunSpec) -> str:
    if isinstance(spec.pairs, DatasetPairs):
        return parse_pair_source(spec.pairs.data, spec.pairs.split).fingerprint
    return get_task(spec.task.train).split("train").fingerprint


def training_texts(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """(id, text) of each prompt that a cell learns from."""
    if isinstance(spec.pairs, DatasetPairs):
        for pair in parse_pair_source(spec.pairs.data, spec.pairs.split).load():
            turns = [{"content": pair.prompt}] if isinstance(pair.prompt, str) else pair.prompt
            yield from ((pair.id, turn["content"]) for turn in turns)
    else:
        yield from ((problem.id, problem.problem) for problem in get_task(spec.task.train).split("train").load())


def _splits(plan: Plan) -> set[tuple[str, str]]:
    return {(spec.task.train, "train") for spec in plan.arms.values() if not _fixed(spec)} | {
        (name, "test") for spec in plan.arms.values() for name in spec.eval.tasks
    }


def require_room_for_completions(spec: RunSpec, language_model: LanguageModel) -> None:
    """Raises PromptTooLongError for a prompt of training or evaluation that is too long.

    Pairs are exempt: their own limit is checked where they are encoded.
    """
    from harness.models.language_model import require_room

    drawn = [] if _fixed(spec) else [(spec.task.template, spec.rollout.max_completion_tokens, candidates(spec))]
    held_out = [get_task(name).split("test").load()[: spec.eval.problems] for name in spec.eval.tasks]
    for template, limit, problems in (
        *drawn,
        *((spec.eval.template, spec.eval.max_completion_tokens, problems) for problems in held_out),
    ):
        prompts = (get_template(template).render(problem.problem) for problem in problems)
        longest = max(len(language_model.encode(prompt)) for prompt in prompts)
        require_room(language_model.model, longest, limit)
