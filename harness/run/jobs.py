"""The jobs of a sweep and how a worker does them. A job travels as JSON; its outcome is in the records."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import RefusedError
from harness.records.cell import CellRecord
from harness.records.files import read_json, write_folder, write_json

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec
    from harness.models.language_model import LanguageModel
    from harness.models.start import StartingPoint
    from harness.run.learning.base import Examples

JobKind = Literal["load", "prepare", "pass_rates", "pairs", "reward_model", "base", "best_of_n", "cell"]
JobState = Literal["done", "refused", "failed", "interrupted", "taken", "invalid"]
Event = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One piece of work.

    kind: `load` the model (which shows early that it can be), `prepare` the starting point of all cells from it,
        measure its `pass_rates` on the training problems, encode a set of `pairs` and score it, train a `reward_model`,
        evaluate the start before training (`base`) and by `best_of_n` of that reward model, or run a `cell`.
    path: the cell's folder, or where the result of the stage goes. spec: the resolved spec as JSON.
    source: the `model.source` that holds the starting weights; differs from the spec's where they were prepared.
    inputs: stage -> where its result is, for those that the job reads.
    """

    kind: JobKind
    path: str
    spec: dict[str, Any]
    source: str
    inputs: dict[JobKind, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


KILLED = "its process ended without a word; the next run continues it"
DISK_FULL = "the disk is full; once there is room, the next run continues it"


class Interrupted(BaseException):
    """Asked to stop. Like KeyboardInterrupt not an Exception, so that nothing on the way mistakes it for a failure."""


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def run_job(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> tuple[JobState, str | None]:
    """Do a job; returns how it ended and why. Exceptions that are nobody's mistake but ours pass through."""
    from evals.errors import EvalError
    from harness.engines.base import EngineMismatchError
    from harness.records.lease import LeaseTakenError

    try:
        _DO[job.kind](job, start, tell)
    except LeaseTakenError as error:
        return "taken", str(error)
    except (RefusedError, EvalError) as error:
        return "refused", str(error)
    except EngineMismatchError as error:
        return "invalid", str(error)
    except OSError as error:
        if not is_disk_full(error):
            raise
        return "interrupted", DISK_FULL
    return "done", None


def _load(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    from harness.config.run_spec import RunSpec
    from harness.engines.choice import make_engine
    from harness.run.inputs import require_room_for_completions
    from harness.training.token_scores import output_head

    spec = RunSpec.model_validate(job.spec)
    tell({"phase": "loading the model", "step": 0, "steps": 0, "done_frac": 0.0})
    language_model = start.for_training(spec, job.source)
    require_room_for_completions(spec, language_model)
    output_head(language_model.model)
    make_engine(spec.rollout, language_model)
    for remark in language_model.remarks():
        tell({"phase": "loading the model", "step": 0, "steps": 0, "done_frac": 0.0, "remark": remark})


def _prepare(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    """Cold start where the spec has one; in any case the weights end up in a folder that loads quickly."""
    from harness.config.model import SupervisedColdStart
    from harness.config.run_spec import RunSpec
    from harness.training.cold_start import run_cold_start

    spec = RunSpec.model_validate(job.spec)
    recipe = spec.model.cold_start
    language_model = start.get(spec, spec.model.source, float32=True)

    def on_step(step: int, steps: int, loss: float) -> None:
        tell({"phase": "cold start", "step": step, "steps": steps, "done_frac": step / steps, "loss": loss})

    if isinstance(recipe, SupervisedColdStart):
        run_cold_start(language_model, recipe, on_step)
    write_folder(Path(job.path), language_model.save)


def _pass_rates(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    from harness.config.run_spec import RunSpec
    from harness.engines.choice import make_engine
    from harness.run.stages.pass_rates import measure_pass_rates

    spec = RunSpec.model_validate(job.spec)
    model = start.get(spec, job.source)
    engine = make_engine(spec.rollout, model)
    measure_pass_rates(Path(job.path), spec, model, engine, _counted("measuring pass rates", tell))


def _pairs(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    from harness.config.run_spec import RunSpec
    from harness.run.stages.pairs import prepare_pairs

    spec = RunSpec.model_validate(job.spec)
    prepare_pairs(Path(job.path), spec, start.get(spec, job.source), _counted("preparing pairs", tell))


def _reward_model(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    from harness.config.run_spec import RunSpec
    from harness.engines.choice import make_engine
    from harness.run.stages.reward_model import make_reward_model

    spec = RunSpec.model_validate(job.spec)
    model = start.get(spec, job.source)
    engine = make_engine(spec.rollout, model)
    make_reward_model(Path(job.path), spec, model, engine, _counted("training the reward model", tell))


def _best_of_n(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    from harness.config.run_spec import RunSpec
    from harness.engines.choice import make_engine
    from harness.run.stages.best_of_n import measure_best_of_n
    from harness.training.reward_model import RewardModel

    spec = RunSpec.model_validate(job.spec)
    model = start.get(spec, job.source)
    tell({"phase": "best of n by the reward model", "step": 0, "steps": 0, "done_frac": 0.0})
    engine = make_engine(spec.rollout, model)
    reward_model = RewardModel.load(Path(job.inputs["reward_model"]), model)
    measure_best_of_n(Path(job.path), spec, model, engine, reward_model)


def _counted(phase: str, tell: Callable[[Event], None]) -> Callable[[int, int], None]:
    def on_progress(done: int, total: int) -> None:
        tell({"phase": phase, "step": done, "steps": total, "done_frac": done / total})

    return on_progress


def _base(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    from harness.config.run_spec import RunSpec
    from harness.engines.choice import make_engine
    from harness.run.evaluation import Evaluator

    spec = RunSpec.model_validate(job.spec)
    model = start.get(spec, job.source)
    tell({"phase": "evaluating the base model", "step": 0, "steps": 0, "done_frac": 0.0})
    engine = make_engine(spec.rollout, model)
    evaluator = Evaluator(spec.eval, spec.seed, model, engine)
    rows = list(evaluator.run(0, spec.eval.samples, final=False, earlier=[], record=lambda rows: None))
    write_json(Path(job.path), [row | {"generated_tokens": 0} for row in rows])


def _cell(job: Job, start: StartingPoint, tell: Callable[[Event], None]) -> None:
    from harness.config.run_spec import RunSpec
    from harness.records.lease import hold_lease
    from harness.run.cell import CellRun
    from harness.run.provenance import provenance

    cell = CellRecord.at(Path(job.path))
    with hold_lease(cell.path):
        if _is_done(cell):
            return
        try:
            spec = RunSpec.model_validate(job.spec)
            # What stands there if the process ends without a word; while it lives, its lease says `running`.
            cell.write_status("interrupted", reason=KILLED, steps=spec.train.steps)
            examples = _examples(job, spec, start.get(spec, job.source))
            model = start.for_training(spec, job.source)
            account = {"model": model.account()} | examples.account
            write_json(cell.path / "provenance.json", provenance() | account)
            CellRun(cell, spec, model, examples, lambda progress: tell(asdict(progress))).run()
        except Interrupted:
            if not _is_done(cell):
                cell.write_status("interrupted", reason="interrupted; the next run continues it")
            raise
        except OSError as error:
            if is_disk_full(error):
                # The torn file is gone by now, which may have made room enough for a few bytes.
                with suppress(OSError):
                    cell.write_status("interrupted", reason=DISK_FULL)
            raise


def _examples(job: Job, spec: RunSpec, start: LanguageModel) -> Examples:
    """What the cell learns from, read from the results of its stages."""
    from harness.run.encoded_pairs import load_pairs
    from harness.run.learning.base import Examples
    from harness.run.prompts import read_correct_counts, training_prompts
    from harness.run.stages.reward_model import read_report
    from harness.training.reward_model import RewardModel

    at = {kind: Path(path) for kind, path in job.inputs.items()}
    if "pairs" in at:
        pairs = load_pairs(at["pairs"])
        return Examples(pairs=pairs, account={"pairs": asdict(pairs.counts)})
    problems = training_prompts(spec, read_correct_counts(at["pass_rates"]) if "pass_rates" in at else {})
    if "reward_model" not in at:
        return Examples(problems)
    folder = at["reward_model"]
    return Examples(
        problems, reward_model=RewardModel.load(folder, start), account={"reward_model": read_report(folder)}
    )


def _is_done(cell: CellRecord) -> bool:
    """From status.json alone: this process holds the lease, so `CellRecord.state` would say `running`."""
    path = cell.path / "status.json"
    return path.exists() and read_json(path)["state"] == "done"


_DO: dict[JobKind, Callable[[Job, StartingPoint, Callable[[Event], None]], None]] = {
    "load": _load,
    "prepare": _prepare,
    "pass_rates": _pass_rates,
    "pairs": _pairs,
    "reward_model": _reward_model,
    "base": _base,
    "best_of_n": _best_of_n,
    "cell": _cell,
}
