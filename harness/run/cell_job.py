"""A cell as a job of a worker: what it lacks is done.

A cell that was never finished is trained and evaluated. A trained cell that is requested under another evaluation is
loaded from its last checkpoint and only evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from harness.config.hashing import evaluation_hash
from harness.config.run_spec import RunSpec
from harness.config.trainer import OutsideTrainer
from harness.executors.base import Event
from harness.models.language_model import LanguageModel
from harness.models.start import StartingPoint
from harness.plan.filing import under_evaluation
from harness.processes import Interrupted, Processes, Stopping
from harness.records import CellRecord
from harness.records.files import (
    DamagedRecordError,
    is_disk_full,
    write_json,
)
from harness.records.lease import hold_lease
from harness.run.cell import CellRun
from harness.run.checkpoint_cell import evaluate_checkpoint, evaluate_trained, load_as_it_is
from harness.run.encoded_pairs import load_pairs
from harness.run.learning import Trained
from harness.run.learning.base import Examples
from harness.run.loop import DISK_FULL, INTERRUPTED, KILLED
from harness.run.program_cell import ProgramCell
from harness.run.prompts import read_correct_counts, training_prompts
from harness.run.stages import find_stage, inputs_of_cell, source_of_start, source_of_teacher
from harness.sampling.services import ServerAwayError
from harness.training.optimizer import DivergedError


def run_cell(
    spec: RunSpec,
    home: Path,
    folder: Path,
    starting_point: StartingPoint,
    tell: Callable[[Event], None],
    require_code: Callable[[], None],
    stopping: Stopping | None = None,
    job: str = "",
) -> None:
    """Do what the cell in a folder lacks, if anything; its state says how it ended.

    Raises what keeps the cell from being done. require_code: as in `CellRun`; it is also called before the first step.
    stopping: as in `CellRun`. job: `Job.id`.
    """

    def report(event: Event) -> None:
        if lease.is_lost:
            lease.require()
        tell(event)

    def remark(sentence: str) -> None:
        tell({"remark": sentence})

    with hold_lease(folder, CellRecord.at(folder).last_epoch, job) as lease:
        # Read under the lease: another process may have run the cell since it was planned.
        cell = under_evaluation(CellRecord.at(folder), evaluation_hash(spec))
        cell.require_readable()
        if cell.is_done:
            return
        require_code()
        # Another run may have trained the cell meanwhile, under another evaluation.
        if not cell.evaluation_folder.exists():
            cell.evaluation_folder.mkdir(parents=True)
            write_json(cell.evaluation_folder / "spec.json", spec.model_dump(mode="json"))
        try:
            # This status stays if the process is killed. While it lives, its lease says `running`.
            cell.write_status("interrupted", reason=KILLED, steps=spec.training_steps)
            if spec.checkpoint:
                load = partial(_load_as_it_is, spec, home, starting_point)
                outcome = evaluate_checkpoint(cell, spec, home, load, report)
                require_code()
                lease.require()
                cell.write_status("done", **outcome, records=cell.count_finished())
            elif cell.lacks == "training" and isinstance(spec.trainer, OutsideTrainer):
                ProgramCell(
                    cell, spec, spec.trainer, home, starting_point, report, require_code, remark, lease, stopping
                ).run()
            elif cell.lacks == "training":
                Processes.join(stopping)
                examples, begin = _examples_and_begin(spec, home, starting_point)
                CellRun(cell, spec, begin, examples, report, require_code, remark, lease, stopping).run()
                # The other processes serve calls of rank 0 until it dismisses them.
                Processes.here().dismiss()
            else:
                evaluate_trained(cell, spec, home, starting_point, report)
                require_code()
                lease.require()
                cell.write_status("done", records=cell.count_finished())
        # A done cell stays done, and a cell under another process's lease is not ours to mark.
        except Interrupted:
            if not cell.is_done and not lease.is_lost:
                cell.write_status("interrupted", reason=INTERRUPTED)
            raise
        except ServerAwayError as error:
            cell.write_status("interrupted", reason=str(error))
            raise
        except DamagedRecordError:
            # A process that has taken over the cell removes files that this one still reads, which is no damage.
            lease.require()
            raise
        except OSError as error:
            lease.require()
            if is_disk_full(error):
                # The torn file is gone by now, which may have made enough room for a few bytes.
                with suppress(OSError):
                    cell.write_status("interrupted", reason=DISK_FULL)
            raise


def serve_cell(spec: RunSpec, home: Path, starting_point: StartingPoint, stopping: Stopping | None = None) -> None:
    """Do this process's share of a cell until it is done, in every process but the first."""
    Processes.join(stopping)
    examples, begin = _examples_and_begin(spec, home, starting_point)
    Trained(spec, begin, examples)
    Processes.here().serve(expected=DivergedError)


def _load_as_it_is(spec: RunSpec, home: Path, starting_point: StartingPoint) -> LanguageModel:
    return load_as_it_is(spec, starting_point, None if spec.checkpoint_folder else source_of_start(spec, home))


def _examples_and_begin(
    spec: RunSpec, home: Path, starting_point: StartingPoint
) -> tuple[Examples, Callable[[], LanguageModel]]:
    """Return a cell's examples, and the function that returns the model to train, as in `CellRun`."""
    source = source_of_start(spec, home)
    examples = _examples(spec, inputs_of_cell(spec, home), starting_point, source)
    # If the starting weights teach, the learner copies them itself, and there is no source.
    if (taught_by := source_of_teacher(spec, home)) is not None:
        teacher = starting_point.teacher(spec, taught_by)
        examples = replace(examples, teacher=teacher.model, account=examples.account | {"teacher": teacher.account()})
    return examples, partial(starting_point.for_training, spec, source)


def _examples(spec: RunSpec, inputs: Mapping[str, Path], starting_point: StartingPoint, source: str) -> Examples:
    """Read the examples of a cell from the results of its stages."""
    if "pairs" in inputs:
        pairs = load_pairs(inputs["pairs"])
        return Examples(pairs=pairs, account={"pairs": asdict(pairs.counts)})
    problems = training_prompts(spec, read_correct_counts(inputs["pass_rates"]) if "pass_rates" in inputs else {})
    start, generator = starting_point.get(spec, source), starting_point.generator(spec)
    account: dict[str, object] = {} if generator is None else {"generator": generator.account()}
    examples = Examples(problems, generator=generator, judge=spec.reward.asked_judge, account=account)
    for stage, result in inputs.items():
        examples = find_stage(stage).add(examples, result, spec, start)
    return examples
