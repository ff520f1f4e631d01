"""A cell as a job of a worker: what it lacks is done. One that was never finished is trained and evaluated; one that is
trained and asked for under another evaluation is loaded from its last checkpoint and only evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from evals.choices import Continuation, Likelihood
from evals.evaluate import SampleRow
from evals.prompts import Thinking
from evals.sampler import Draw, Drawn, SamplingParams
from evals.tasks.base import Problem
from evals.tasks.environment import Environment
from harness.config.hashing import evaluation_hash
from harness.config.model import Lora
from harness.config.run_spec import RunSpec
from harness.config.trainer import OutsideTrainer
from harness.engines.base import make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, weights_digest
from harness.models.start import StartingPoint
from harness.plan.filing import under_evaluation
from harness.processes import Interrupted, Processes, Stopping
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE, STARTS_FILE
from harness.records.files import (
    PROBLEMS_FILE,
    DamagedRecordError,
    ProblemsFile,
    append_jsonl,
    is_disk_full,
    write_atomic,
    write_json,
)
from harness.records.lease import hold_lease
from harness.records.registration import registration_found
from harness.run.cell import CellRun, Progress
from harness.run.checkpoint_cell import CheckpointCell
from harness.run.encoded_pairs import load_pairs
from harness.run.evaluation import EarlierEvaluations, Evaluator, evaluation_document
from harness.run.learning import Trained
from harness.run.learning.base import Examples
from harness.run.loop import DISK_FULL, INTERRUPTED, KILLED
from harness.run.program_cell import ProgramCell
from harness.run.prompts import read_correct_counts, training_prompts
from harness.run.provenance import append_start
from harness.run.stages import inputs_of_cell, source_of_start, source_of_teacher
from harness.run.stages.reward_model import read_report
from harness.sampling.chat_client import ServerAwayError
from harness.sampling.conditions import Conditions
from harness.sampling.judge import GenerativeJudge
from harness.sampling.sampler import BudgetedSampler, ConversingSampler, EngineSampler
from harness.sampling.scoring import Policy
from harness.sampling.store import SAMPLES_FILE, SampleStore
from harness.training.checkpoint import (
    UnusableCheckpointError,
    checkpoint_folders,
    load_checkpoint,
    load_trained_weights,
    step_of,
)
from harness.training.optimizer import DivergedError
from harness.training.reward_model import RewardModel

Row = dict[str, Any]


def run_cell(
    spec: RunSpec,
    home: Path,
    folder: Path,
    starting_point: StartingPoint,
    tell: Callable[[Row], None],
    require_code: Callable[[], None],
    stopping: Stopping | None = None,
    job: str = "",
) -> None:
    """Do what the cell in a folder lacks, if anything; its state says how it ended. Raises what keeps it from being
    done.

    require_code: as in `CellRun`; asked before the first step too. stopping: as there. job: `Job.id`.
    """

    def report(progress: Progress) -> None:
        if lease.is_lost:
            lease.require()
        tell(asdict(progress))

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
                checkpoint = CheckpointCell(cell, spec, home, partial(_load_as_it_is, spec, home, starting_point))
                checkpoint.run(lambda policy, elsewhere: evaluate(cell, spec, policy, report, elsewhere))
                require_code()
                lease.require()
                cell.write_status("done", **checkpoint.outcome(), records=cell.count_finished())
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
                found = registration_found(cell.path.parents[1])
                append_start(cell.evaluation_folder / STARTS_FILE, found, cell.step)
                evaluate(cell, spec, TrainedPolicy(cell, spec, home, starting_point), report)
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


def evaluate(
    cell: CellRecord,
    spec: RunSpec,
    policy: Policy,
    report: Callable[[Progress], None],
    elsewhere: Callable[[Conditions], list[SampleRow]] = lambda conditions: [],
) -> None:
    """Evaluate a cell without training it: samples that any of its evaluations drew under the same conditions are taken
    over, as are those that were drawn elsewhere, and the others drawn."""
    folder, step = cell.evaluation_folder, cell.step
    write_json(folder / EVALUATION_FILE, evaluation_document(spec))
    about = {"step": step, "final": True}
    store = SampleStore(folder / SAMPLES_FILE, about, problems=ProblemsFile(folder / PROBLEMS_FILE))
    store.mend()
    earlier = EarlierEvaluations(cell, besides=folder)
    curves: list[Row] = []

    def drawn_before(conditions: Conditions) -> list[SampleRow]:
        curves.extend(EarlierEvaluations(cell).curve(conditions))
        return [*earlier.samples(step, conditions), *elsewhere(conditions)]

    def tell(done: int, total: int) -> None:
        report(Progress("evaluating", done, total, done / total, None, None))

    evaluator = Evaluator(spec.eval, spec.seed, policy)
    evaluated = list(evaluator.run(spec.eval.samples, store, drawn_before, tell))
    finals = [{**about, **scores, "generated_tokens": cell.generated_tokens} for scores, _ in evaluated]
    write_atomic(cell.scores, lambda aside: append_jsonl(aside, [*curves, *finals]))
    store.compact([{**about, **row} for _, rows in evaluated for row in rows])  # type: ignore[typeddict-item]
    store.drop()


@dataclass(frozen=True)
class TrainedPolicy:
    """Samples from the weights that a cell ended with, which are loaded when the first sample is wanted."""

    cell: CellRecord
    spec: RunSpec
    home: Path
    starting_point: StartingPoint

    def draw(self, draws: Sequence[Draw], params: SamplingParams) -> list[Drawn]:
        """As `evals.sampler.Sampler.draw`. Raises RefusedError if the cell's last checkpoint is not there any more, or
        holds other weights."""
        return self._sampler.draw(draws, params)

    def score(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """As `evals.choices.Scorer.score`. Raises as `draw`."""
        return self._sampler.score(continuations)

    def within(self, budget_tokens: int, thinking: Thinking) -> BudgetedSampler:
        """As `harness.sampling.scoring.Policy.within`. Raises as `draw`."""
        return self._sampler.within(budget_tokens, thinking)

    def in_turns(self, environment: Environment, problems: Mapping[str, Problem]) -> ConversingSampler:
        """As `harness.sampling.scoring.Policy.in_turns`. Raises as `draw`."""
        return self._sampler.in_turns(environment, problems)

    @cached_property
    def _sampler(self) -> EngineSampler:
        step = self.cell.step
        checkpoint = next((path for path in checkpoint_folders(self.cell.checkpoints) if step_of(path) == step), None)
        if checkpoint is None:
            raise self._refusal(f"its checkpoint of step {step} is not there any more in {self.cell.checkpoints}")
        model = load_trained(self.spec, checkpoint, self.home, self.starting_point)
        if weights_digest(model.model.state_dict()) != self.cell.digest:
            raise self._refusal(f"{checkpoint} does not hold the weights that the cell ended with")
        return EngineSampler(model, make_engine(self.spec.rollout, model), self.spec.seed)

    def _refusal(self, reason: str) -> RefusedError:
        had, asked = self.cell.own.spec["eval"], self.spec.model_dump(mode="json")["eval"]
        differing = [
            f"eval.{name}={asked[name]} (it has {had.get(name)})" for name in asked if asked[name] != had.get(name)
        ]
        what = ", ".join(differing) or "the graders, problems and metrics of today"
        return RefusedError(
            f"{self.cell.path.name} is trained, but lacks samples for {what}, and {reason}. Copy the checkpoint back "
            f"from where the cell was trained, ask for the evaluation that it has, or move {self.cell.path} away and "
            "run the sweep again, which trains it anew."
        )


def load_trained(spec: RunSpec, checkpoint: Path, home: Path, starting_point: StartingPoint) -> LanguageModel:
    """The policy in the folder of a cell's checkpoint. Raises RefusedError for one that is damaged, and for a start
    that cannot be loaded."""
    try:
        loaded = load_checkpoint(checkpoint)
    except UnusableCheckpointError as error:
        raise RefusedError(f"{error} Or give another checkpoint of the cell.") from None
    # If all weights come from the checkpoint, only the architecture counts of the start.
    needs_start = loaded.is_start or isinstance(spec.model.lora, Lora)
    source = source_of_start(spec, home) if needs_start else spec.model.source
    language_model = starting_point.for_training(spec, source)
    if not loaded.is_start:
        load_trained_weights(language_model.model, loaded.weights)
    return language_model


def load_as_it_is(spec: RunSpec, starting_point: StartingPoint, source: str | None = None) -> LanguageModel:
    """The model that is evaluated without any training. source: from where instead of `model.source`, which a stage may
    have prepared.

    Raises RefusedError for a model that cannot be loaded, or a checkpoint that is damaged.
    """
    folder = spec.checkpoint_folder
    if folder is None:
        return starting_point.get(spec, source or spec.model.source)
    return load_trained(spec, folder, folder.parents[4], starting_point)


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
