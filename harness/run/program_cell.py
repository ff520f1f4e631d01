"""A cell that a program of the user trains.

bench prepares the program's inputs and follows its output. The program's checkpoints are evaluated after it has ended,
when it no longer needs the machine's memory.

    <cell>/program/prompts.jsonl   the training prompts; for an algorithm on pairs, pairs.jsonl too
    <cell>/program/e<epoch>/       what one start of the program received (config.json) and wrote
    <cell>/checkpoints/            the final weights, as in any cell

After a kill, the program is started again with its last complete checkpoint. How exactly it resumes is up to the
program.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from evals.graders import account_of
from evals.prompts import get_template
from evals.tasks import get_task
from harness.config.hashing import digest
from harness.config.knobs import active
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec
from harness.config.trainer import OutsideTrainer, hands_over_pairs
from harness.errors import RefusedError, few
from harness.executors.base import Event
from harness.models.language_model import LanguageModel, weights_digest
from harness.models.loading import require_shapes, weights_in
from harness.models.start import StartingPoint
from harness.processes import Stopping, reset_peak_memory
from harness.records import CellRecord
from harness.records.fence import remove
from harness.records.files import read_last_row, write_atomic, write_folder, write_json
from harness.records.lease import Lease
from harness.records.rollouts import stand_of
from harness.run.cell import CellLog, evaluate_step
from harness.run.evaluator import Evaluator, begin_own_evaluation
from harness.run.flops import TokensSpent
from harness.run.program_inputs import has_prompts, pairs_by_step, prompts_by_step, write_prompts
from harness.run.stages import inputs_of_cell, source_of_start
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SAMPLES_FILE
from harness.trainers.contract import CONFIG_FILE, PAIRS_FILE, PROMPTS_FILE, Budget, Done, ProgramConfig
from harness.trainers.process import ProcessGroup, Watch, environment_of, find_command
from harness.trainers.written import (
    Announced,
    ContractError,
    Metrics,
    MetricsRow,
    ProgramTotals,
    WrittenRollouts,
    folder_of,
)
from harness.training.checkpoint import Checkpoint, all_finite, save_checkpoint, trained_weights

POLL_S = 0.2
KEPT = 2
"""The number of the program's newest checkpoints to keep, in addition to those to be evaluated."""
NOTHING_DONE = Done(step=0, generated_tokens=0, trained_tokens=0)


class ProgramCell:
    """Runs one cell that a program trains, in the cell's folder. It has the arguments of `harness.run.cell.CellRun`."""

    def __init__(
        self,
        cell: CellRecord,
        spec: RunSpec,
        trainer: OutsideTrainer,
        home: Path,
        starting_point: StartingPoint,
        on_progress: Callable[[Event], None],
        require_code: Callable[[], None],
        remark: Callable[[str], None],
        lease: Lease,
        stopping: Stopping | None = None,
    ) -> None:
        self._cell, self._spec, self._trainer, self._home = cell, spec, trainer, home
        self._starting_point, self._report, self._remark = starting_point, on_progress, remark
        self._require_code, self._lease = require_code, lease
        self._stopping = stopping or Stopping()
        self._log = CellLog(cell, lease.epoch)
        self._folder = cell.path.resolve() / "program"
        self._source = source_of_start(spec, home)
        self._columns = trainer.columns(spec)
        self._written = ProgramTotals({}, {}, None)
        self._done = NOTHING_DONE
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._reward: float | None = None
        self._tokens_per_s: float | None = None
        self._prompts = prompts_by_step(spec, inputs_of_cell(spec, home))

    def run(self) -> None:
        """Train until the budget is used up, evaluate, and mark the cell done.

        Raises RefusedError if the program fails.
        """
        self._started_s = time.perf_counter()
        start = self._starting_point.get(self._spec, self._source)
        self._prepare(start)
        self._resume(start)
        if not self._uses_budget(self._done) and self._written.diverged is None:
            # The program needs the memory that the loaded model occupies.
            self._starting_point.release()
            self._train()
        self._require_code()
        self._evaluate()

    def _prepare(self, start: LanguageModel) -> None:
        """Write the prompts or pairs, and save the starting weights unless they are in a folder already."""
        self._shapes = {name: tuple(weight.shape) for name, weight in start.model.state_dict().items()}
        self._folder.mkdir(exist_ok=True)
        prompts, pairs = self._folder / PROMPTS_FILE, self._folder / PAIRS_FILE
        if has_prompts(self._spec) and not prompts.exists():
            write_atomic(prompts, lambda aside: write_prompts(aside, self._spec, self._prompts, start))
        if hands_over_pairs(self._spec) and not pairs.exists():
            write_atomic(pairs, lambda aside: self._write_pairs(aside, start))
        if self._folder_of_start() is None:
            # A program reads its model from a folder. A model from the hub, for example, must be saved to a folder
            # first.
            write_folder(self._folder / "start", start.save)

    def _folder_of_start(self) -> Path | None:
        """Return the folder of the starting weights, or None if they must still be saved."""
        source, saved = parse_source(self._source), self._folder / "start"
        if source.kind in ("path", "builtin"):
            return source.path.resolve()
        return saved if (saved / "config.json").exists() else None

    def _write_pairs(self, path: Path, start: LanguageModel) -> None:
        spec, last = self._spec, self._spec.train.steps
        with path.open("w", encoding="utf-8") as handle:
            for rows in pairs_by_step(spec, inputs_of_cell(spec, self._home), start):
                handle.writelines(json.dumps(row) + "\n" for row in rows)
                step, generated_tokens = rows[0]["step"], rows[0]["generated_tokens"]
                frac = self._used_frac(Done(step=step, generated_tokens=generated_tokens, trained_tokens=0))
                self._report(Event(phase="preparing pairs", step=step, steps=last, done_frac=min(1.0, frac)))
                # The budget is used up, so the program will not reach later pairs.
                if frac >= 1:
                    return

    def _resume(self, start: LanguageModel) -> None:
        """Return to the last complete checkpoint, and record everything that was written before it."""
        superseded = self._cell.superseded()
        self._written = written = ProgramTotals.by(self._folder, self._columns, self._counts_trained, superseded)
        whole = [step for step in written.checkpoints if step in written.steps and self._is_whole(step)]
        written.checkpoints = {step: written.checkpoints[step] for step in sorted(whole)}
        # The program may read this checkpoint as long as it runs.
        self._resumed_at = step = max(whole, default=0)
        if step:
            self._log.note(f"resumed at step {step}")
        self._lease.require()
        begin_own_evaluation(self._cell, self._spec)
        self._log.cut_after(step)
        self._log.started(step, self._account(start))
        recorded = (read_last_row(self._cell.path / "steps.jsonl") or {}).get("step", 0)
        kept = max((stand[1] for path in self._cell.rollout_files() if (stand := stand_of(path))), default=0)
        # Rows that a killed start had not recorded yet are taken from the program's output.
        for number in range(recorded + 1, step + 1):
            self._record(written.steps[number][0])
        self._done = self._done_at(step)
        self._flush_rollouts(kept, step)

    def _is_whole(self, step: int) -> bool:
        """Return whether a checkpoint of an earlier start still exists and is complete.

        If not, the cell resumes from an older checkpoint.
        """
        folder = self._written.checkpoints[step]
        if not folder.is_dir():
            return False
        try:
            require_shapes(folder, self._shapes)
        except RefusedError as error:
            self._remark(f"{self._cell.path.name}: {error}")
            return False
        return True

    def _account(self, start: LanguageModel) -> dict[str, object]:
        argv, trainer = self._argv("{config}", "{output}"), self._trainer
        program = environment_of(find_command(argv, trainer.folder(), trainer.environment()))
        account: dict[str, object] = {"model": start.account(), "program": {"command": argv, **(program or {})}}
        account |= {"program_packages": digest(program)} if program else {}
        return account | account_of(self._spec.graders)

    def _argv(self, config: str, output: str) -> list[str]:
        return self._trainer.argv(config, output, self._spec.seed)

    def _config(self, output: Path) -> ProgramConfig:
        spec, latest = self._spec, self._written.checkpoints.get(self._done.step)
        return ProgramConfig(
            model=str(self._folder_of_start()),
            prompts=str(self._folder / PROMPTS_FILE) if has_prompts(spec) else None,
            pairs=str(self._folder / PAIRS_FILE) if hands_over_pairs(spec) else None,
            output=str(output),
            resume=None if latest is None else str(latest),
            done=self._done,
            seed=spec.seed,
            budget=Budget(
                steps=spec.train.steps,
                generated_tokens=spec.budget.tokens,
                trained_tokens=spec.budget.trained_tokens,
            ),
            checkpoint_every=spec.train.checkpoint_every,
            evaluate_every=spec.eval.every,
            device=spec.train.device,
            args=self._trainer.arguments(spec),
            knobs={knob: value for knob, value in active(spec).items() if not knob.startswith("trainer.")},
        )

    def _train(self) -> None:
        output = folder_of(self._folder, self._log.epoch).resolve()
        output.mkdir()
        write_json(output / CONFIG_FILE, self._config(output).model_dump(mode="json"))
        argv = self._argv(str(output / CONFIG_FILE), str(output))
        with ProcessGroup(argv, self._trainer.folder(), self._trainer.environment(), self._cell.log) as process:
            try:
                self._follow(process, output)
            except ContractError as error:
                raise process.failed(str(error)) from None

    def _follow(self, process: ProcessGroup, output: Path) -> None:
        """Record the program's output until the program has ended or diverged. Raises RefusedError if it failed."""
        metrics = Metrics(output, self._done, self._columns, self._counts_trained)
        rollouts, watch = WrittenRollouts(output), Watch(process, self._trainer)
        over_at: int | None = None
        while True:
            # The exit code is read before the rows, so that no row written before the program's end is missed.
            code = process.exit_code()
            for news in metrics.read(has_ended=code is not None):
                if isinstance(news, Announced):
                    self._checkpoint(news)
                elif news.not_finite:
                    self._written.diverged = news.not_finite
                    return
                else:
                    completions = rollouts.of_step(news.step)
                    self._written.steps[news.step] = news, completions
                    self._record(news, watch.row_took_s())
                    if over_at is None and self._uses_budget(news.done):
                        over_at = news.step
            if (sentence := metrics.told_missing()) is not None:
                self._remark(f"{self._cell.path.name}: {sentence}")
            watch.tell(self._tell)
            # Complete: the program has used up its budget and saved a checkpoint at that step or later.
            is_complete = over_at is not None and max(self._written.checkpoints, default=0) >= over_at
            overran = over_at is not None and self._done.step > over_at
            if code is not None or ((is_complete or overran) and not watch.may_end_by_itself(at_once=not is_complete)):
                break
            if (reason := watch.reason_to_end()) is not None and not is_complete:
                raise process.failed(reason)
            self._stopping.signs_of_life += 1
            time.sleep(POLL_S)
        if not is_complete:
            raise process.failed(self._why_incomplete(code, over_at))
        if code:
            self._log.note(f"the program ended with exit code {code} after its last checkpoint")

    def _why_incomplete(self, code: int | None, over_at: int | None) -> str:
        step, steps = self._done.step, self._spec.train.steps
        if over_at is not None and step > over_at:
            return (
                f"the program went on after its budget, which was used at step {over_at}, and left no checkpoint of "
                "that step or a later one when it was stopped. Let it end with the step that reaches its `budget`"
            )
        if code:
            return f"the program ended with exit code {code} after step {step}"
        if over_at is None:
            return (
                f"the program ended after step {step} of {steps}, with budget left: cells are compared at their "
                "budget. Lower train.steps, or let it train on"
            )
        return (
            f"the program ended without a final checkpoint: its last step, {step}, has none. Save one after the last "
            f'step, and then announce it in metrics.jsonl: {{"step": {step}, "checkpoint": "step-{step}"}}'
        )

    def _record(self, step: MetricsRow, took_s: float | None = None) -> None:
        drawn = step.generated_tokens - self._done.generated_tokens
        self._done = step.done
        counts = {"generated_tokens": step.generated_tokens}
        if self._counts_trained:
            counts["trained_tokens"] = step.trained_tokens
        task, template = get_task(self._spec.task.train), get_template(self._spec.task.template)
        self._log.problems.add(task.name, "train", self._prompts(step.step), template.ask)
        self._log.append("steps.jsonl", {"step": step.step, **counts, **step.columns})
        self._reward = step.columns.get("reward/mean", self._reward)
        if took_s:
            self._tokens_per_s = drawn / took_s if drawn else None
            timing = {"step": step.step, "total_s": took_s, "tokens_per_s": self._tokens_per_s}
            self._log.append("timing.jsonl", timing)

    def _checkpoint(self, announced: Announced) -> None:
        """Record a new checkpoint, and remove checkpoints that are no longer needed."""
        self._lease.require()
        checkpoints, every = self._written.checkpoints, self._spec.eval.every
        require_shapes(announced.folder, self._shapes)
        self._flush_rollouts(max(checkpoints, default=0), announced.step)
        checkpoints[announced.step] = announced.folder
        # The first checkpoint after the budget is used up is kept, because the cell is scored there. The checkpoint
        # that the program resumed from is kept, because the program may still read it.
        scored = next((step for step in sorted(checkpoints) if self._uses_budget(self._done_at(step))), None)
        for step in sorted(checkpoints)[:-KEPT]:
            if step not in (scored, self._resumed_at) and (not every or step % every):
                remove(checkpoints.pop(step))

    def _flush_rollouts(self, after: int, until: int) -> None:
        """Write the completions of the steps after one checkpoint, up to another."""
        for number in range(after + 1, until + 1):
            step, completions = self._written.steps[number]
            self._log.hold_rollouts(number, completions)
            self._written.steps[number] = step, []
        self._log.flush_rollouts()

    @property
    def _counts_trained(self) -> bool:
        return self._spec.budget.trained_tokens is not None

    def _done_at(self, step: int) -> Done:
        return self._written.steps[step][0].done if step else NOTHING_DONE

    def _uses_budget(self, done: Done) -> bool:
        return self._used_frac(done) >= 1

    def _used_frac(self, done: Done) -> float:
        return max(done.step / self._spec.train.steps, self._budget_used(done)[0])

    def _budget_used(self, done: Done) -> tuple[float, str]:
        """Return the used share of the budget closest to being used up, and its name; (0, "") if there is no budget."""
        spent = {"generated_tokens": done.generated_tokens, "trained_tokens": done.trained_tokens}
        return self._spec.budget.most_used(spent)

    def _evaluate(self) -> None:
        """Evaluate the checkpoints of the learning curve and the final checkpoint, and mark the cell done."""
        spec, every = self._spec, self._spec.eval.every
        language_model = self._starting_point.for_training(spec, self._source)
        reset_peak_memory(language_model.model.device)
        sampler = EngineSampler.of(spec, language_model)
        evaluator = Evaluator(spec.eval, spec.seed, lambda: sampler)
        final = next(step for step in self._final_steps() if self._load(language_model, step))
        if self._written.diverged is None and not self._uses_budget(self._done_at(final)):
            # The program reported finite losses, but no finite checkpoint has used up the budget.
            self._written.diverged = "a weight of the last checkpoint is not finite"
        due = range(every, final, every) if every else ()
        if missing := [step for step in due if step not in self._written.checkpoints]:
            sentence = f"the program left no checkpoint of step {few(list(map(str, missing)))}: the curve lacks it"
            self._log.note(sentence)
            self._remark(f"{self._cell.path.name}: {sentence}")
        # The cell is scored at this step. Later steps do not belong to it.
        self._log.cut_after(final)
        for step in (step for step in due if step not in missing and self._load(language_model, step)):
            self._evaluate_at(evaluator, step, language_model, is_final=False)
        self._load(language_model, final)
        self._evaluate_at(evaluator, final, language_model, is_final=True)
        self._require_code()
        self._finish(final, language_model)

    def _final_steps(self) -> Iterator[int]:
        """Yield the steps at which the cell may be scored, in order of preference, for the first finite one.

        Without divergence, the first checkpoint that has used up the budget comes first. The earlier checkpoints
        follow, newest first, and then the start.
        """
        steps = sorted(self._written.checkpoints)
        over = [step for step in steps if self._uses_budget(self._done_at(step))]
        yield from over[:1] if self._written.diverged is None else ()
        yield from (step for step in reversed(steps) if step not in over)
        yield 0

    def _load(self, language_model: LanguageModel, step: int) -> bool:
        """Load the weights of a checkpoint into the model. Return False if one of them is not finite."""
        model = language_model.model
        if step == 0:
            self._starting_point.for_training(self._spec, self._source)
            return True
        weights = weights_in(self._written.checkpoints[step], model)
        if not all_finite(weights.values()):
            self._log.note(f"a weight of the checkpoint of step {step} is not finite")
            return False
        model.load_state_dict(weights)
        return True

    def _evaluate_at(self, evaluator: Evaluator, step: int, language_model: LanguageModel, is_final: bool) -> None:
        spec = self._spec
        if is_final:
            steps, phase = spec.train.steps, "evaluating"
        else:
            steps, phase = 0, f"evaluating the checkpoint of step {step}"
        self._report(Event(phase=phase, step=step, steps=steps, done_frac=1.0, reward=self._reward))
        tokens = self._done_at(step).generated_tokens
        samples = spec.eval.samples if is_final else spec.eval.curve_samples
        device = language_model.model.device
        evaluate_step(self._log, evaluator, step, is_final, samples, tokens, self._started_s, device)

    def _finish(self, step: int, language_model: LanguageModel) -> None:
        model, diverged = language_model.model, self._written.diverged
        done = self._done_at(step)
        spent = TokensSpent(done.generated_tokens, trained_tokens=done.trained_tokens)
        weights = trained_weights(model) if step else {}
        records = self._cell.count(SAMPLES_FILE)
        self._lease.require()
        save_checkpoint(
            self._cell.checkpoints,
            Checkpoint(step, spent.generated_tokens, weights, {}, spent.progress, records, self._log.epoch),
        )
        reason = None if diverged is None else f"diverged ({diverged}); scored at step {step}"
        digest, require_lease = weights_digest(model.state_dict()), self._lease.require
        self._log.finish(self._spec, step, spent.generated_tokens, bool(diverged), digest, require_lease, reason)
        # The cell's checkpoint folder now has the final weights, so the program's copies can be removed.
        for folder in self._written.checkpoints.values():
            remove(folder)
        self._log.note(f"done at step {step} after {spent.generated_tokens} generated tokens")

    def _tell(self) -> None:
        done, (_, budget) = self._done, self._budget_used(self._done)
        frac = min(1.0, self._used_frac(done))
        where: Event = {"phase": "training", "step": done.step, "steps": self._spec.train.steps, "done_frac": frac}
        self._report({**where, "budget": budget, "reward": self._reward, "tokens_per_s": self._tokens_per_s})
