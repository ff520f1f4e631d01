"""Evaluate a cell without training: a model as it is, or a trained cell under another evaluation.

In one home, each sample is taken only once, whichever sweep, arm or `bench eval` requests it first. An evaluation that
differs only in its grader, name or number of samples reuses the existing samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from evals.graders import account_of
from evals.samples import SampleRow
from harness.config.hashing import digest
from harness.config.model import Lora
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.executors.base import Event
from harness.models.language_model import LanguageModel, weights_digest
from harness.models.start import StartingPoint
from harness.processes import peak_memory_mb, reset_peak_memory
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE, STARTS_FILE
from harness.records.files import PROBLEMS_FILE, ProblemsFile, append_jsonl, write_atomic, write_json
from harness.records.registration import registration_found
from harness.records.rows import ScoreRow
from harness.run.evaluator import (
    EarlierEvaluations,
    Evaluator,
    begin_own_evaluation,
    drawn_in_home,
    evaluation_document,
)
from harness.run.provenance import append_start
from harness.run.stages import source_of_start
from harness.sampling.conditions import Conditions
from harness.sampling.sampler import EngineSampler, Policy
from harness.sampling.store import SAMPLES_FILE, SampleStore
from harness.training.checkpoint import (
    UnusableCheckpointError,
    checkpoint_folders,
    load_checkpoint,
    load_trained_weights,
    step_of,
)


def evaluate_checkpoint(
    cell: CellRecord, spec: RunSpec, home: Path, starting_point: StartingPoint, report: Callable[[Event], None]
) -> dict[str, object]:
    """Evaluate a model as it is, and record the duration.

    Returns the status fields of a finished cell. Their `digest` is that of the answers and verdicts. The model is
    loaded only if a sample must be taken.
    home: searched for existing samples.
    """
    folder, device, started_s = cell.evaluation_folder, torch.device(spec.train.device), time.perf_counter()
    registered = registration_found(cell.path.parents[1]) | account_of(spec.graders)
    reset_peak_memory(device)
    if cell.evaluation is None:
        begin_own_evaluation(cell, spec)

    @cache
    def policy() -> EngineSampler:
        model = load_as_it_is(spec, starting_point, None if spec.checkpoint_folder else source_of_start(spec, home))
        append_start(folder / STARTS_FILE, registered | {"model": model.account()})
        return EngineSampler.of(spec, model)

    _evaluate(cell, spec, policy, report, lambda conditions: drawn_in_home(home, spec, conditions, besides=folder))
    # If no sample was taken, `policy` has not recorded a start.
    if not policy.cache_info().currsize:
        append_start(folder / STARTS_FILE, registered)
    taken_s = time.perf_counter() - started_s
    took = {"step": 0, "eval_s": taken_s, "elapsed_s": taken_s, "peak_memory_mb": peak_memory_mb(device)}
    append_jsonl(folder / "timing.jsonl", [took])
    rows = SampleStore(folder / SAMPLES_FILE, {"step": 0, "final": True}).rows()
    # A cell without training has no weights to hash, so its answers are hashed instead.
    answers = [[row["task"], row["problem_id"], row["sample"], row["text"], row["correct"]] for row in rows]
    return {"step": 0, "steps": 0, "generated_tokens": 0, "flags": [], "digest": digest(answers)}


def evaluate_trained(
    cell: CellRecord, spec: RunSpec, home: Path, starting_point: StartingPoint, report: Callable[[Event], None]
) -> dict[str, object]:
    """Evaluate a trained cell under another evaluation than its own. Returns no additional status fields.

    Raises RefusedError if samples are missing and the cell's last checkpoint is gone or contains other weights.
    """

    @cache
    def policy() -> EngineSampler:
        step = cell.step
        checkpoint = next((path for path in checkpoint_folders(cell.checkpoints) if step_of(path) == step), None)
        if checkpoint is None:
            raise _refusal(cell, spec, f"its checkpoint of step {step} is not there any more in {cell.checkpoints}")
        model = load_trained(spec, checkpoint, home, starting_point)
        # Other weights would yield another model's samples under this cell's name.
        if weights_digest(model.model.state_dict()) != cell.digest:
            raise _refusal(cell, spec, f"{checkpoint} does not hold the weights that the cell ended with")
        return EngineSampler.of(spec, model)

    append_start(cell.evaluation_folder / STARTS_FILE, registration_found(cell.path.parents[1]), cell.step)
    _evaluate(cell, spec, policy, report)
    return {}


def _refusal(cell: CellRecord, spec: RunSpec, reason: str) -> RefusedError:
    had, asked = cell.own.spec["eval"], spec.model_dump(mode="json")["eval"]
    differing = [
        f"eval.{name}={asked[name]} (it has {had.get(name)})" for name in asked if asked[name] != had.get(name)
    ]
    what = ", ".join(differing) or "the graders, problems and metrics of today"
    return RefusedError("run.samples_missing", cell=cell.path.name, missing=what, reason=reason, path=cell.path)


def _evaluate(
    cell: CellRecord,
    spec: RunSpec,
    policy: Policy,
    report: Callable[[Event], None],
    elsewhere: Callable[[Conditions], list[SampleRow]] = lambda conditions: [],
) -> None:
    """Evaluate a cell, taking only the samples that are missing.

    Samples that another evaluation of the cell took under the same conditions are reused.
    elsewhere: returns further samples to reuse.
    """
    folder, step = cell.evaluation_folder, cell.step
    write_json(folder / EVALUATION_FILE, evaluation_document(spec))
    about = {"step": step, "final": True}
    store = SampleStore(folder / SAMPLES_FILE, about, problems=ProblemsFile(folder / PROBLEMS_FILE))
    # A kill may have left a torn last row.
    store.mend()
    earlier = EarlierEvaluations(cell, besides=folder)
    # The scores of the evaluations during training are copied too, so that this evaluation's scores are complete.
    curves: list[ScoreRow] = []

    def drawn_before(conditions: Conditions) -> list[SampleRow]:
        curves.extend(EarlierEvaluations(cell).curve(conditions))
        return [*earlier.samples(step, conditions), *elsewhere(conditions)]

    def tell(done: int, total: int) -> None:
        report(Event(phase="evaluating", step=done, steps=total, done_frac=done / total))

    evaluator = Evaluator(spec.eval, spec.seed, policy)
    evaluated = list(evaluator.run(spec.eval.samples, store, drawn_before, tell))
    finals = [{**about, **scores, "generated_tokens": cell.generated_tokens} for scores, _ in evaluated]
    write_atomic(cell.scores, lambda aside: append_jsonl(aside, [*curves, *finals]))
    store.compact([{**about, **row} for _, rows in evaluated for row in rows])  # type: ignore[typeddict-item]
    store.drop()


def load_trained(spec: RunSpec, checkpoint: Path, home: Path, starting_point: StartingPoint) -> LanguageModel:
    """Load the policy from the folder of a cell's checkpoint.

    Raises RefusedError if the checkpoint is damaged or the starting model cannot be loaded.
    """
    try:
        loaded = load_checkpoint(checkpoint)
    except UnusableCheckpointError as error:
        raise RefusedError("run.give_another_checkpoint", error=error) from None
    # If the checkpoint contains all weights, only the architecture of the starting model matters.
    needs_start = loaded.is_start or isinstance(spec.model.lora, Lora)
    source = source_of_start(spec, home) if needs_start else spec.model.source
    language_model = starting_point.for_training(spec, source)
    if not loaded.is_start:
        load_trained_weights(language_model.model, loaded.weights)
    return language_model


def load_as_it_is(spec: RunSpec, starting_point: StartingPoint, source: str | None = None) -> LanguageModel:
    """Load the model that is evaluated without any training.

    source: used in place of `model.source` if a stage has prepared the weights.
    Raises RefusedError if the model cannot be loaded or the checkpoint is damaged.
    """
    folder = spec.checkpoint_folder
    if folder is None:
        return starting_point.get(spec, source or spec.model.source)
    # parents[4] of <home>/<sweep>/cells/<cell>/checkpoints/<step> is the home, which contains the results of the
    # stages.
    return load_trained(spec, folder, folder.parents[4], starting_point)
