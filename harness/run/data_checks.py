"""Checks of models and data before the first cell.

Models and data must exist, and rows must be the same as when they were first used. Held-out problems must not occur in
training prompts. Every prompt must leave room for its completion in the model's context.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.contamination import VERSION as CONTAMINATION_VERSION
from evals.contamination import Overlap, is_contaminated, overlap
from evals.pairs import parse_pair_source
from evals.prompts import Mode, get_template
from evals.tasks import get_task
from evals.tasks.base import Task
from evals.tasks.rows import LoadedRows
from harness.config.hashing import digest
from harness.config.model_source import parse_source
from harness.config.rollout import DatasetPairs
from harness.config.run_spec import RunSpec
from harness.config.task import EvalSpec
from harness.config.trainer import OutsideTrainer
from harness.errors import RefusedError, shown
from harness.plan import Plan
from harness.records.files import read_json, write_json
from harness.records.sweep import Source
from harness.rewards.parts.verifier_free import VrCli
from harness.rewards.total import is_reference, load_function
from harness.run.prompts import candidates, require_prompts, teacher_prompt
from harness.run.stages import stages_of_cell
from harness.trainers.process import find_command
from harness.training.demonstrations import require_demonstrations

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel


def require_models_and_data(plan: Plan) -> list[str]:
    """Raise RefusedError or EvalError for a missing model, missing or faulty data, or too few prompts.

    Returns remarks for the user, e.g. that rows from the hub differ from the pinned rows.
    """
    asked: set[str | None] = {spec.reward.generator for spec in plan.arms.values()}
    asked |= {spec.teacher.source for spec in plan.arms.values() if spec.teacher.type == "model"}
    for name in {spec.model.source for spec in plan.arms.values()} | {name for name in asked if name is not None}:
        source = parse_source(name)
        # Models on the hub are checked by the stage `load`, when they are loaded.
        if source.kind != "hf":
            source.require()
    for trainer in (spec.trainer for spec in plan.arms.values() if not spec.checkpoint):
        if isinstance(trainer, OutsideTrainer):
            trainer.require_installed()
            find_command(trainer.argv("", "", 0), trainer.folder(), trainer.environment())
    for part in {part for spec in plan.arms.values() for part in spec.reward.parts}:
        if is_reference(part):
            # Importing a reward function now reports its faults before any cell starts.
            load_function(part)
    specs = plan.arms.values()
    # Arms with the same task and step size share one check.
    for spec in {(spec.task, spec.rollout.prompts_per_step): spec for spec in specs if not _fixed(spec)}.values():
        require_prompts(spec)
    for spec in specs:
        for stage in () if _fixed(spec) else stages_of_cell(spec):
            stage.require_data(spec)
        if spec.rollout.sampler == "given" and not _fixed(spec):
            for problem in get_task(spec.task.train).split("train").load():
                problem.require_solution()
    for recipe in {recipe for spec in specs if not spec.checkpoint for recipe in spec.cold_starts}:
        require_demonstrations(recipe)
    for pairs in {spec.pairs for spec in specs}:
        if isinstance(pairs, DatasetPairs):
            # Loading the rows raises an error if one of them is faulty.
            parse_pair_source(pairs.data, pairs.split).load()
    remarks = []
    wanted = plan.first_spec.eval.problems
    for name, split in sorted(_splits(plan)):
        task = get_task(name)
        rows = task.split(split).load()
        # If the task itself declares fewer rows than wanted, the plan warns about it.
        if split == "test" and wanted is not None and (task.n_evaluated(wanted) or 0) > len(rows):
            remarks.append(
                f"{name} {split}: eval.problems is {wanted}, but there are {len(rows)}; all of them are used."
            )
        if isinstance(rows, LoadedRows) and rows.warning:
            remarks.append(f"{name} {split}: {rows.warning}")
    return remarks


def record_source(cache: Path, task: Task, split: str) -> dict[str, object] | None:
    """Record the origin of a split's rows when they are first used, and return it.

    The origin is {"task", "split", "rows", **LoadedRows.account}, or None for generated problems. Raises RefusedError
    if the same origin, such as an unpinned data set on the hub, gives other rows than before.
    """
    rows = task.split(split).load()
    if not isinstance(rows, LoadedRows):
        return None
    now = {"task": task.name, "split": split, "rows": len(rows), **rows.account}
    path = _source_file(cache, task, split)
    before = read_json(path) if path.exists() else []
    # There is one entry per origin, because the same task may use a file here and the hub there.
    first = next((one for one in before if one["origin"] == rows.origin), None)
    if first is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, [*before, now])
    elif first["digest"] != rows.digest:
        raise RefusedError(
            "run.rows_changed",
            task=task.name,
            split=split,
            origin=rows.origin,
            digest=rows.digest,
            first=first["digest"],
            path=path,
        )
    return now


def record_sources(plan: Plan, cache: Path) -> None:
    """Record the source of every split that a plan trains or evaluates on. Raises as `record_source`."""
    for name, split in sorted(_splits(plan)):
        record_source(cache, get_task(name), split)


def data_sources(plan: Plan, cache: Path) -> list[Source]:
    """Return the recorded sources of a plan's splits, one entry per origin."""
    paths = (_source_file(cache, get_task(name), split) for name, split in sorted(_splits(plan)))
    return [Source(**source) for path in paths if path.exists() for source in read_json(path)]


def _source_file(cache: Path, task: Task, split: str) -> Path:
    return cache / f"rows-{digest([task.name, split, task.split(split).fingerprint])[:16]}.json"


def contamination(plan: Plan, cache: Path) -> list[dict[str, object]]:
    """Find held-out problems of each evaluation task that occur in the arms' training prompts, in full or by 8-grams.

    Returns [{"task", "contaminated", **fields of evals.contamination.Overlap}], or [] if nothing is trained. Results
    are cached by the fingerprints of the data.
    """
    if plan.request.checkpoint is not None:
        return []
    evaluated = plan.first_spec.eval
    found = []
    for task in map(get_task, evaluated.tasks):
        held_out = task.split("test")
        trained_on = {_training_fingerprint(spec): spec for spec in plan.arms.values()}
        # The key includes the version, so that results of an earlier rule are not reused.
        key = digest([CONTAMINATION_VERSION, *sorted(trained_on), held_out.fingerprint, evaluated.problems])
        path = cache / f"overlap-{key[:16]}.json"
        if not path.exists():
            problems = itertools.islice(held_out.load(), evaluated.problems)
            prompts = (prompt for spec in trained_on.values() for prompt in training_texts(spec))
            found_here = overlap(prompts, ((p.id, p.problem) for p in problems))
            write_json(path, overlap_row(task.name, found_here))
        found.append(read_json(path))
    return found


def overlap_row(task: str, found: Overlap) -> dict[str, object]:
    """Return a task's overlap in the form in which it is recorded."""
    return {"task": task, "contaminated": is_contaminated(found), **asdict(found)}


def contamination_sentence(row: Mapping[str, Any]) -> str:
    """Describe a task's overlap in one line. If the task is contaminated, return a warning that lists the rows."""
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
    """Return whether no completion is sampled in training: the cell uses a fixed set of pairs or does not train."""
    return spec.pairs.type == "dataset" or spec.checkpoint is not None


def _training_fingerprint(spec: RunSpec) -> str:
    if isinstance(spec.pairs, DatasetPairs):
        return parse_pair_source(spec.pairs.data, spec.pairs.split).fingerprint
    return get_task(spec.task.train).split("train").fingerprint


def training_texts(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Yield the id and text of each prompt that a cell trains on."""
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
    """Raise PromptTooLongError if a prompt of training or evaluation is too long for the model's context.

    Raises RefusedError if a thinking budget does not fit, or if the tokenizer cannot encode the words that stop the
    thinking. Pairs have a separate limit, which is checked when they are encoded.
    """
    from harness.models.language_model import require_room

    if not _fixed(spec):
        # A prompt may be rendered in either mode, and the two may differ in length.
        modes: list[Mode] = ["think", "direct"] if spec.task.direct_frac else ["think"]
        template = get_template(spec.task.template)
        prompts = (template.render(problem.problem, mode) for problem in candidates(spec) for mode in modes)
        require_room(language_model.model, language_model.longest(prompts), spec.rollout.max_completion_tokens)
    template = get_template(spec.eval.template)
    for task in map(get_task, spec.eval.tasks):
        held_out = task.split("test").load()[: spec.eval.problems]
        prompt_tokens = language_model.longest(template.ask(problem) for problem in held_out)
        require_room(language_model.model, prompt_tokens, spec.eval.max_completion_tokens)
        if task.thinking_budget_tokens is not None:
            _require_room_for_budget(spec.eval, task, task.thinking_budget_tokens, language_model, prompt_tokens)


def _require_room_for_budget(
    spec: EvalSpec, task: Task, budget_tokens: int, language_model: LanguageModel, prompt_tokens: int
) -> None:
    """Raise RefusedError if the task's thinking cannot be stopped, or if the answer after it exceeds the context.

    prompt_tokens: the length of the longest prompt.
    """
    words = get_template(spec.template).thinking.stop
    stop = language_model.encode_text(words)
    asked = f"eval.tasks has {task.name} with eval.template={spec.template}"
    if language_model.tokenizer.unk_token_id in stop:
        raise RefusedError("run.stop_not_in_vocabulary", asked=asked, stop=shown(words))
    context = language_model.context_tokens
    needed = prompt_tokens + budget_tokens + len(stop) + spec.max_completion_tokens
    if context is not None and needed > context:
        raise RefusedError(
            "run.thinking_exceeds_context",
            asked=asked,
            prompt_tokens=prompt_tokens,
            budget_tokens=budget_tokens,
            stop_tokens=len(stop),
            max_completion_tokens=spec.max_completion_tokens,
            context_tokens=context,
            excess_tokens=needed - context,
        )


def require_gold_texts(spec: RunSpec, policy: LanguageModel, generator: LanguageModel | None) -> None:
    """Raise RefusedError if a reward part needs a training problem's gold text but cannot use it.

    The text may be missing, the scoring model's tokenizer may be unable to encode it, or it may not fit into the
    context after the longest completion.
    """
    from harness.training.gold_answers import answer_form, gold_tokens

    form, template = answer_form(spec), get_template(spec.task.template)
    for part, scorer in ({} if _fixed(spec) else spec.reward.gold_parts).items():
        kind = spec.reward.of(VrCli).gold if scorer == "generator" else "answer"
        model, name = policy, "model.source"
        if scorer == "generator" and generator is not None:
            model, name = generator, "reward.vr_cli.generator"
        longest = 0
        for problem in candidates(spec):
            gold = getattr(problem, kind)
            if not gold:
                raise RefusedError(
                    "run.gold_text_missing", part=part, problem=problem.id, task=spec.task.train, gold_text=kind
                )
            for text in (problem.problem, gold):
                # The likelihood of an unknown token says nothing about the text.
                if model.tokenizer.unk_token_id in model.encode_text(text):
                    raise RefusedError(
                        "run.gold_text_not_in_vocabulary", part=part, model=name, text=shown(text), problem=problem.id
                    )
            written = gold_tokens(problem, kind, form, model)
            longest = max(longest, len(model.encode(template.render(problem.problem))) + len(written))
        context = model.context_tokens
        opening = 0 if form is None else len(model.encode_text(form.opening))
        # The gold text is scored after a complete completion and the words that introduce an answer.
        needed = longest + spec.rollout.max_completion_tokens + opening
        if context is not None and needed > context:
            raise RefusedError(
                "run.gold_text_exceeds_context",
                part=part,
                needed_tokens=needed,
                model=name,
                context_tokens=context,
                excess_tokens=needed - context,
            )


def require_room_for_teacher(spec: RunSpec, teacher: LanguageModel) -> None:
    """Raise PromptTooLongError if a teacher's prompt leaves no room for a completion in the teacher's context.

    Raises EvalError if the prompt shows a solution and the problem has none.
    """
    from harness.models.language_model import require_room

    template = get_template(spec.teacher_template)
    longest = teacher.longest(teacher_prompt(template, problem) for problem in candidates(spec))
    require_room(teacher.model, longest, spec.rollout.max_completion_tokens)
