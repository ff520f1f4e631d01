"""A cell as a job of a worker: what it lacks is done. One that was never finished is trained and evaluated; one that is
trained and asked for under another evaluation is loaded from its last checkpoint and only evaluated."""

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
from harness.run.stages import inputs_of_cell, source_of_start, source_of_teacher
from harness.run.stages.reward_model import read_report
from harness.sampling.chat_client import ServerAwayError
from harness.sampling.judge import GenerativeJudge
from harness.training.optimizer import DivergedError
from harness.training.reward_model import RewardModel


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
    """Do what the cell in a folder lacks, if anything; its state says how it ended. Raises what keeps it from being
    done.

    require_code: as in `CellRun`; asked before the first step too. stopping: as there. job: `Job.id`.
    """

    def report(event: Event) -> None:
        if lease.is_lost:
            lease.require()
        tell(event)

    def remark(sentence: str) -> None:
        tell({"remark": sentence})

    with hold_lease(folder, CellRecord.at(folder).last_epoch, job) as lease:
        cell = under_evaluation(CellRecord.at(folder), evaluation_hash(spec))
        cell.require_readable()
        if cell.is_done:
            return
        require_code()
        if not cell.evaluation_folder.exists():  # another run trained the cell meanwhile, under another evaluation
            cell.evaluation_folder.mkdir(parents=True)
            write_json(cell.evaluation_folder / "spec.json", spec.model_dump(mode="json"))
        try:
            # What stands there if the process ends without a word; while it lives, its lease says `running`.
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
                Processes.here().dismiss()
            else:
                evaluate_trained(cell, spec, home, starting_point, report)
                require_code()
                lease.require()
                cell.write_status("done", records=cell.count_finished())
        except Interrupted:
            if not cell.is_done and not lease.is_lost:
                cell.write_status("interrupted", reason=INTERRUPTED)
            raise
        except ServerAwayError as error:
            cell.write_status("interrupted", reason=str(error))
            raise
        except DamagedRecordError:
            lease.require()  # whoever has taken the cell over removes files that this process still reads
            raise
        except OSError as error:
            lease.require()
            if is_disk_full(error):
                # The torn file is gone by now, which may have made room enough for a few bytes.
                with suppress(OSError):
                    cell.write_status("interrupted", reason=DISK_FULL)
            raise


def serve_cell(spec: RunSpec, home: Path, starting_point: StartingPoint, stopping: Stopping | None = None) -> None:
    """What the processes of a cell do besides the first: their share of what it does, until it is done."""
    Processes.join(stopping)
    examples, begin = _examples_and_begin(spec, home, starting_point)
    Trained(spec, begin, examples)
    Processes.here().serve(expected=DivergedError)


def _load_as_it_is(spec: RunSpec, home: Path, starting_point: StartingPoint) -> LanguageModel:
    return load_as_it_is(spec, starting_point, None if spec.checkpoint_folder else source_of_start(spec, home))


def _examples_and_begin(
    spec: RunSpec, home: Path, starting_point: StartingPoint
) -> tuple[Examples, Callable[[], LanguageModel]]:
    """What a cell learns from, and what gives the model that it trains, as in `CellRun`."""
    source = source_of_start(spec, home)
    examples = _examples(spec, inputs_of_cell(spec, home), starting_point, source)
    if (taught_by := source_of_teacher(spec, home)) is not None:
        teacher = starting_point.teacher(spec, taught_by)
        examples = replace(examples, teacher=teacher.model, account=examples.account | {"teacher": teacher.account()})
    return examples, partial(starting_point.for_training, spec, source)


def _examples(spec: RunSpec, inputs: Mapping[str, Path], starting_point: StartingPoint, source: str) -> Examples:
    """What the cell learns from, read from the results of its stages."""
    if "pairs" in inputs:
        pairs = load_pairs(inputs["pairs"])
        return Examples(pairs=pairs, account={"pairs": asdict(pairs.counts)})
    problems = training_prompts(spec, read_correct_counts(inputs["pass_rates"]) if "pass_rates" in inputs else {})
    start, generator = starting_point.get(spec, source), starting_point.generator(spec)
    scorer = RewardModel.load(inputs["reward_model"], start) if "reward_model" in inputs else None
    judge = GenerativeJudge.load(inputs["judge"], spec, start) if "judge" in inputs else spec.reward.asked_judge
    account = {stage: read_report(inputs[stage]) for stage in ("reward_model", "judge") if stage in inputs}
    if generator is not None:
        account["generator"] = generator.account()
    return Examples(problems, reward_model=scorer, generator=generator, judge=judge, account=account)
