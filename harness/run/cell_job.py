"""A cell as a job of a worker. The job does what the cell still lacks.

A cell without trained weights is trained and evaluated. A trained cell that is requested under another evaluation is
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
from harness.run.checkpoint_cell import evaluate_checkpoint, evaluate_trained
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
    """Do what the cell in a folder lacks, if anything. The cell's state says how this ended.

    Raises the error that keeps the cell from being done.
    require_code: as in `CellRun`; also called before the first step.
    stopping: as in `CellRun`.
    job: `Job.id`.
    """

    def report(event: Event) -> None:
        if lease.is_lost:
            lease.require()
        tell(event)

    def remark(sentence: str) -> None:
        tell({"remark": sentence})

    with hold_lease(folder, CellRecord.at(folder).last_epoch, job) as lease:
        # The state is read under the lease, because another process may have run the cell since it was planned.
        cell = under_evaluation(CellRecord.at(folder), evaluation_hash(spec))
        cell.require_readable()
        if cell.is_done:
            return
        require_code()
        # Another run may have trained the cell in the meantime, under another evaluation.
        if not cell.evaluation_folder.exists():
            cell.evaluation_folder.mkdir(parents=True)
            write_json(cell.evaluation_folder / "spec.json", spec.model_dump(mode="json"))
        try:
            # This status remains if the process is killed. While the process is alive, its lease makes the state
            # `running`.
            cell.write_status("interrupted", reason=KILLED, steps=spec.training_steps)
            if spec.checkpoint or cell.lacks != "training":
                evaluated = evaluate_checkpoint if spec.checkpoint else evaluate_trained
                outcome = evaluated(cell, spec, home, starting_point, report)
                require_code()
                lease.require()
                cell.write_status("done", **outcome, records=cell.count_finished())
            elif isinstance(spec.trainer, OutsideTrainer):
                ProgramCell(
                    cell, spec, spec.trainer, home, starting_point, report, require_code, remark, lease, stopping
                ).run()
            else:
                Processes.join(stopping)
                examples, begin = _examples_and_begin(spec, home, starting_point)
                CellRun(cell, spec, begin, examples, report, require_code, remark, lease, stopping).run()
                # The other processes execute calls of rank 0 until rank 0 dismisses them.
                Processes.here().dismiss()
        # A cell that is done must stay done. A cell that another process has leased must not be marked by this one.
        except Interrupted:
            if not cell.is_done and not lease.is_lost:
                cell.write_status("interrupted", reason=INTERRUPTED)
            raise
        except ServerAwayError as error:
            cell.write_status("interrupted", reason=str(error))
            raise
        except DamagedRecordError:
            # A process that has taken over the cell removes files that this one still reads. This is not damage.
            lease.require()
            raise
        except OSError as error:
            lease.require()
            if is_disk_full(error):
                # The torn file has been removed by now, which may leave room for a few bytes.
                with suppress(OSError):
                    cell.write_status("interrupted", reason=DISK_FULL)
            raise


def serve_cell(spec: RunSpec, home: Path, starting_point: StartingPoint, stopping: Stopping | None = None) -> None:
    """Do this process's share of a cell until the cell is done. Run by every process but the first."""
    Processes.join(stopping)
    examples, begin = _examples_and_begin(spec, home, starting_point)
    Trained(spec, begin, examples)
    Processes.here().serve(expected=DivergedError)


def _examples_and_begin(
    spec: RunSpec, home: Path, starting_point: StartingPoint
) -> tuple[Examples, Callable[[], LanguageModel]]:
    """Return a cell's examples, and the function that returns the model to be trained, as in `CellRun`."""
    source = source_of_start(spec, home)
    examples = _examples(spec, inputs_of_cell(spec, home), starting_point, source)
    # There is no source if the starting weights are the teacher: the learner then copies them.
    if (taught_by := source_of_teacher(spec, home)) is not None:
        teacher = starting_point.teacher(spec, taught_by)
        examples = replace(examples, teacher=teacher.model, account=examples.account | {"teacher": teacher.account()})
    return examples, partial(starting_point.for_training, spec, source)


def _examples(spec: RunSpec, inputs: Mapping[str, Path], starting_point: StartingPoint, source: str) -> Examples:
    """Return the examples of a cell, read from the results of its stages."""
    if "pairs" in inputs:
        pairs = load_pairs(inputs["pairs"])
        return Examples(pairs=pairs, account={"pairs": asdict(pairs.counts)})
    problems = training_prompts(spec, read_correct_counts(inputs["pass_rates"]) if "pass_rates" in inputs else {})
    start, generator = starting_point.get(spec, source), starting_point.generator(spec)
    account: dict[str, object] = {} if generator is None else {"generator": generator.account()}
    scorers = {
        part.name: find_stage(part.stage).scorer(inputs.get(part.stage), spec, start) for part in spec.reward.scored
    }
    account |= {part.stage: dict(own) for part in spec.reward.scored if (own := scorers[part.name].account)}
    return Examples(problems, generator=generator, scorers=scorers, account=account)
