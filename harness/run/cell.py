"""One cell: train, evaluate, record. After a kill it resumes from its last checkpoint, bit for bit.

Records are written in an order that makes a kill harmless. The rows of a step are written before its checkpoint, and a
resume removes the rows that follow the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from evals.graders import account_of
from evals.prompts import get_template
from evals.tasks import get_task
from harness.config.run_spec import RunSpec
from harness.executors.base import Event
from harness.models.language_model import LanguageModel, weights_digest
from harness.processes import Interrupted, Processes, Stopping, peak_memory_mb, reset_peak_memory
from harness.records import CellRecord
from harness.records.cell import EMBEDDINGS_FILE, STARTS_FILE
from harness.records.fence import remove, require_owned
from harness.records.files import (
    PROBLEMS_FILE,
    DamagedRecordError,
    ProblemsFile,
    append_jsonl,
    keep_jsonl,
    write_atomic,
)
from harness.records.lease import Lease
from harness.records.registration import registration_found
from harness.records.rollouts import file_of, stand_of, write_rollouts
from harness.run.embeddings import FollowedTokens
from harness.run.evaluator import EarlierEvaluations, Evaluator, begin_own_evaluation
from harness.run.flops import FlopsRule, TokensSpent
from harness.run.health import health_flags
from harness.run.learning import Trained
from harness.run.learning.base import Examples
from harness.run.provenance import append_start
from harness.sampling.services import ServerAwayError
from harness.sampling.store import SAMPLES_FILE, SampleStore
from harness.training.checkpoint import Checkpoint, all_finite, checkpoint_path, load_latest, save_checkpoint
from harness.training.optimizer import DivergedError
from harness.training.past_weights import drop_past_weights, missing_past_weights

if TYPE_CHECKING:
    import torch


class CellRun:
    def __init__(
        self,
        cell: CellRecord,
        spec: RunSpec,
        begin: Callable[[], LanguageModel],
        examples: Examples,
        on_progress: Callable[[Event], None],
        require_code: Callable[[], None] = lambda: None,
        remark: Callable[[str], None] = lambda sentence: None,
        lease: Lease | None = None,
        stopping: Stopping | None = None,
    ) -> None:
        """Create the cell's learner and evaluator.

        begin: returns the language model with its starting weights, to be trained in place. Further calls restore these
        weights in the same model.
        require_code: raises if the user's code has changed since the cell was planned; called before the cell is done.
        remark: called with a sentence for the user, e.g. that records were lost and steps are repeated.
        lease: the lease on the cell's folder, or None if no other process can run the cell. LeaseLostError stops a
        process that has lost the lease.
        stopping: how others ask the cell to stop.
        """
        self._cell, self._spec, self._report, self._require_code = cell, spec, on_progress, require_code
        self._remark = remark
        self._stopping = stopping or Stopping()
        self._require_lease: Callable[[], None] = lease.require if lease is not None else lambda: None
        self._examples = examples
        self._log = CellLog(cell, 0 if lease is None else lease.epoch)
        self._trained = Trained(spec, begin, examples, cell.checkpoints)
        self._start, self._learner = self._trained.start, self._trained.learner
        self._model = self._start.model
        self._followed = FollowedTokens.of(self._start)
        self._task, self._template = get_task(spec.task.train), get_template(spec.task.template)
        self._evaluator = Evaluator(spec.eval, spec.seed, lambda: self._trained.sampler)
        self._step = 0
        self._saved_step = -1
        self._spent = TokensSpent()
        self._flops_rule = FlopsRule.of(self._model, spec)
        self._last_reward: float | None = None
        self._tokens_per_s: float | None = None
        self._diverged = False

    def run(self) -> None:
        """Train until the budget is used up, evaluate, and mark the cell done."""
        reset_peak_memory(self._model.device)
        self._started_s = time.perf_counter()
        self._resume()
        try:
            self._train()
        except DivergedError as error:
            self._return_to_last_finite(str(error))
        self._tell("evaluating")
        self._evaluate(self._spec.eval.samples, final=True)
        self._require_code()
        self._followed.write(self._cell.path / EMBEDDINGS_FILE, self._model)
        digest = weights_digest(self._model.state_dict())
        tokens = self._spent.generated_tokens
        self._log.finish(self._spec, self._step, tokens, self._diverged, digest, self._require_lease)
        # Past weights are dropped only now: until the cell is done, a resume needs them.
        drop_past_weights(self._cell.checkpoints)
        self._log.note(f"done at step {self._step} after {tokens} generated tokens")

    def _train(self) -> None:
        """Train until the budget is used up. If interrupted, write a checkpoint of the last complete step."""
        try:
            # The evaluation of this step may be missing because of an interruption.
            self._evaluate_on_the_way()
            while not self._finished():
                self._train_step()
                self._evaluate_on_the_way()
                if self._step % self._spec.train.checkpoint_every == 0 or self._finished():
                    self._checkpoint()
        except (Interrupted, ServerAwayError):
            if self._stopping.is_whole and self._step != self._saved_step:
                # Remove the row that was being written when the interruption came.
                self._log.cut_after(self._step)
                # If a weight is not finite, the last finite checkpoint remains the last one.
                with suppress(DivergedError):
                    self._checkpoint()
            raise

    def _finished(self) -> bool:
        # train.steps limits the run even if some of the token budget is left.
        return self._step >= self._spec.train.steps or self._budget_used()[0] >= 1

    def _resume(self) -> None:
        passed_over: list[str] = []
        checkpoint = load_latest(self._cell.checkpoints, self._fault, passed_over.append)
        if checkpoint is not None:
            self._restore(checkpoint)
            self._log.note(f"resumed at step {self._step}")
        if passed_over:
            went_on = f"continues from step {self._step}" if checkpoint else "starts again from step 0"
            for sentence in (f"{self._cell.path.name} {went_on}: {reason}" for reason in passed_over):
                self._log.note(sentence)
                self._remark(sentence)
        self._require_lease()
        begin_own_evaluation(self._cell, self._spec)
        self._log.cut_after(self._step)
        self._log.started(self._step, self._account())
        # If the very first step diverges, there must be a checkpoint to return to.
        if checkpoint is None:
            self._checkpoint()

    def _account(self) -> dict[str, object]:
        """Return the provenance of this start: the model, the examples, the processes and the graders."""
        size, sharding = Processes.here().size, self._spec.train.sharding
        together = {"processes": size} | ({"sharding": sharding} if size > 1 else {})
        return {"model": self._start.account()} | self._examples.account | together | account_of(self._spec.graders)

    def _fault(self, checkpoint: Checkpoint) -> str | None:
        """Return the reason why an intact checkpoint cannot be used for a resume, or None if it can."""
        if self._cell.superseded()(checkpoint.epoch, checkpoint.step):
            return f"the checkpoint of step {checkpoint.step} is from a start whose steps a later start repeated"
        shortfall = self._cell.shortfall(checkpoint.records)
        return shortfall or missing_past_weights(self._cell.checkpoints, checkpoint.progress)

    def _restore(self, checkpoint: Checkpoint) -> None:
        try:
            self._trained.restore(checkpoint, checkpoint_path(self._cell.checkpoints, checkpoint.step))
        except RuntimeError as error:
            raise DamagedRecordError(
                "run.checkpoint_of_another_cell", checkpoints=self._cell.checkpoints, step=checkpoint.step, error=error
            ) from None
        self._step = checkpoint.step
        done = checkpoint.progress
        self._spent = TokensSpent(done["generated_tokens"], done["teacher_tokens"], done["trained_tokens"])
        self._saved_step = self._step

    def _checkpoint(self) -> None:
        weights, trainer = self._trained.state()
        if not all_finite(weights.values()):
            raise DivergedError("a weight is not finite")
        self._require_lease()
        # Rows are written first. If the process is killed in between, the resume removes rows that no checkpoint
        # covers.
        self._log.flush_rollouts()
        # The checkpoint of step 0 stores no weights, because `begin` restores the starting weights.
        is_start = self._step == 0
        save_checkpoint(
            self._cell.checkpoints,
            Checkpoint(
                self._step,
                self._spent.generated_tokens,
                {} if is_start else weights,
                {} if is_start else trainer,
                self._learner.progress() | self._spent.progress,
                self._cell.count(SAMPLES_FILE),
                self._log.epoch,
            ),
        )
        self._saved_step = self._step

    def _return_to_last_finite(self, reason: str) -> None:
        """Return to the last checkpoint with finite weights, at which the cell is then scored.

        A diverged cell is a result, not a failure.
        """
        diverged_at = self._step + 1
        checkpoint = load_latest(self._cell.checkpoints, self._fault)
        if checkpoint is None:
            raise RuntimeError(f"{self._cell.path}: no checkpoint to return to, though one precedes the first step")
        self._restore(checkpoint)
        self._log.cut_after(self._step)
        self._diverged = True
        self._log.note(f"diverged near step {diverged_at} ({reason}); scored at step {self._step}")

    def _train_step(self) -> None:
        # Sampling may be interrupted at any time. The update and the writing of the step's row may not, so that weights
        # and records agree.
        with ExitStack() as update:
            self._do_step(lambda: update.enter_context(self._stopping.held()))
        self._tell("training")

    def _do_step(self, before_update: Callable[[], object]) -> None:
        step, started_s = self._step + 1, time.perf_counter()
        outcome = self._learner.step(step, self._done_frac(), before_update)
        # The model that samples must have the new weights before the next step.
        if self._trained.is_split:
            self._trained.take_over()
        total_s = time.perf_counter() - started_s
        self._step = step
        self._spent.generated_tokens += outcome.generated_tokens
        self._spent.teacher_tokens += outcome.teacher_tokens
        self._spent.trained_tokens += outcome.trained_tokens
        self._tokens_per_s = outcome.generated_tokens / total_s if outcome.generated_tokens else None
        self._last_reward = outcome.reward
        timing = {
            "step": step,
            **outcome.timing,
            "total_s": total_s,
            "tokens_per_s": self._tokens_per_s,
            "peak_memory_mb": peak_memory_mb(self._model.device),
        }
        self._log.append("timing.jsonl", timing)
        self._log.problems.add(self._task.name, "train", outcome.problems, self._template.ask)
        for note in outcome.notes:
            self._log.note(f"step {step}: {note}")
        self._log.append("steps.jsonl", {"step": step, **self._spent_so_far(), **outcome.metrics})
        self._log.hold_rollouts(step, outcome.rollouts)

    def _evaluate_on_the_way(self) -> None:
        every = self._spec.eval.every
        if every and self._step and self._step % every == 0 and not self._finished():
            self._evaluate(self._spec.eval.curve_samples, final=False)

    def _evaluate(self, samples: int, final: bool) -> None:
        tokens, device = self._spent.generated_tokens, self._model.device
        evaluate_step(self._log, self._evaluator, self._step, final, samples, tokens, self._started_s, device)

    def _tell(self, phase: str) -> None:
        done, steps, budget = self._done_frac(), self._spec.train.steps, self._budget_used()[1]
        where: Event = {"phase": phase, "step": self._step, "steps": steps, "done_frac": done, "budget": budget}
        self._report({**where, "reward": self._last_reward, "tokens_per_s": self._tokens_per_s})

    def _done_frac(self) -> float:
        return min(1.0, max(self._step / self._spec.train.steps, self._budget_used()[0]))

    def _budget_used(self) -> tuple[float, str]:
        """Return the used share of the budget closest to being used up, and its name; (0, "") if there is no budget."""
        return self._spec.budget.most_used(self._amounts())

    def _spent_so_far(self) -> dict[str, float]:
        """Return the columns of steps.jsonl for the amounts spent so far.

        Generated tokens are always included. Other amounts are included if they have a budget, and teacher tokens also
        if there is a teacher.
        """
        always = ("generated_tokens", *(() if self._spec.teacher.type == "none" else ("teacher_tokens",)))
        shown = {*always, *self._spec.budget.limits}
        return {name: amount for name, amount in self._amounts().items() if name in shown}

    def _amounts(self) -> dict[str, float]:
        """Return the amounts spent so far, by column of steps.jsonl."""
        counts_flops = self._spec.budget.flops is not None
        spent: dict[str, float] = asdict(self._spent)
        return spent | ({"flops": self._flops_rule.flops(self._spent)} if counts_flops else {})


_ROWS = ("steps.jsonl", "timing.jsonl", "scores.jsonl", SAMPLES_FILE)


@dataclass
class CellLog:
    """Writes a cell's records.

    Rollout rows are kept in memory until the next checkpoint and then written as one Parquet file.
    """

    cell: CellRecord
    epoch: int = 0
    """The number of this start, which every row contains. 0 stands for the last start's number plus one."""
    problems: ProblemsFile = field(init=False)
    """The problems that rollouts and samples refer to. A resume uses the same problems, so it removes none of them."""
    _rollouts: dict[int, Sequence[Mapping[str, object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problems = ProblemsFile(self.cell.path / PROBLEMS_FILE)
        self.epoch = self.epoch or 1 + self.cell.last_epoch

    def cut_after(self, step: int) -> None:
        """Remove everything that was recorded after a step, and torn last lines.

        Samples of a final evaluation are kept, so that a resume continues with them. Their scores are removed, because
        they are recomputed from the samples.
        """
        superseded = self.cell.superseded()
        for name in _ROWS:
            keep_jsonl(
                self.cell.path / name,
                lambda row: bool(row["step"] <= step) and not superseded(row.get("epoch", 0), row["step"]),
            )
        keep_jsonl(self.cell.path / "scores.jsonl", lambda row: not row["final"])
        # evals.parquet is rebuilt from evals.jsonl.
        remove(self.cell.evals)
        current = self.cell.rollout_files()
        for path in self.cell.rollouts.glob("*.parquet"):
            stand = stand_of(path)
            # A file with rows after this step is removed completely. Files are written at checkpoints, so no file spans
            # one.
            if stand is not None and (path not in current or stand[1] > step):
                remove(path)

    def started(self, from_step: int, provenance: Mapping[str, object]) -> None:
        """Append a row to starts.jsonl: who trains the cell from this step on, where and with what.

        provenance: the facts about the model and the examples.
        """
        found = registration_found(self.cell.path.parents[1])
        append_start(self.cell.path / STARTS_FILE, {**found, **provenance}, from_step, self.epoch)

    def hold_rollouts(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Keep the completions of a step in memory until the next `flush_rollouts`."""
        if rows:
            self._rollouts[step] = rows

    def samples(self, about: Mapping[str, object]) -> SampleStore:
        """Return the store of an evaluation's samples. about: fields that distinguish the evaluation's rows."""
        current = self.cell.superseded()
        return SampleStore(self.cell.path / SAMPLES_FILE, about, self.epoch, problems=self.problems, superseded=current)

    def finish(
        self,
        spec: RunSpec,
        step: int,
        generated_tokens: int,
        diverged: bool,
        digest: str,
        require_lease: Callable[[], None],
        reason: str | None = None,
    ) -> None:
        """Mark the cell done.

        digest: the digest of the final weights.
        reason: what a reader must know about how the cell ended.
        """
        require_lease()
        # evals.jsonl is kept until the cell is done, because a resume continues with it.
        samples = self.samples({})
        samples.compact(samples.rows())
        outcome = {
            "flags": health_flags(self.cell.read_steps(), diverged, self._final_score(spec.task.train)),
            "digest": digest,
            "records": self.cell.count_finished(),
        }
        require_lease()
        amounts = {"steps": spec.train.steps, "generated_tokens": generated_tokens}
        self.cell.write_status("done", reason=reason, step=step, **amounts, **outcome)
        self.drop_samples()

    def drop_samples(self) -> None:
        """Remove evals.jsonl, which evals.parquet replaces."""
        self.samples({}).drop()

    def _final_score(self, task: str) -> float | None:
        """Return the fraction of correct samples in the final evaluation on a task, or None if there is none."""
        scores = [row for row in self.cell.read_scores() if row["final"] and row["task"] == task]
        return scores[-1]["metrics"].get("avg@n") if scores else None

    def append(self, name: str, row: Mapping[str, object]) -> None:
        """Append a row, with the number of this start, to one of the cell's JSONL files.

        timing.jsonl has one row for a step with its phases, and one for an evaluation after the step.
        """
        append_jsonl(self.cell.path / name, [{**row, "epoch": self.epoch}])

    def flush_rollouts(self) -> None:
        """Write the held rollout rows to rollouts/<first>-<last>-e<epoch>.parquet."""
        if not self._rollouts:
            return
        self.cell.rollouts.mkdir(exist_ok=True)
        rows = [row for of_step in self._rollouts.values() for row in of_step]
        name = file_of(min(self._rollouts), max(self._rollouts), self.epoch)
        write_atomic(self.cell.rollouts / name, lambda aside: write_rollouts(aside, rows))
        self._rollouts = {}

    def note(self, message: str) -> None:
        require_owned(self.cell.log)
        self.cell.add_to_log(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")


def evaluate_step(
    log: CellLog,
    evaluator: Evaluator,
    step: int,
    final: bool,
    samples: int,
    generated_tokens: int,
    began_s: float,
    device: torch.device,
) -> None:
    """Evaluate a training cell on the tasks for which the step has no scores yet.

    began_s: when this start of the cell began, by `time.perf_counter`.
    """
    cell, started_s = log.cell, time.perf_counter()
    scored = {row["task"] for row in cell.read_scores() if (row["step"], row["final"]) == (step, final)}
    if scored.issuperset(get_task(name).name for name in evaluator.spec.tasks):
        return
    about = {"step": step, "final": final}
    # The samples of the cell's own evaluation are in the store already.
    earlier = EarlierEvaluations(cell, besides=cell.path)
    for found, _ in evaluator.run(samples, log.samples(about), partial(earlier.samples, step)):
        if found["task"] not in scored:
            log.append("scores.jsonl", {**about, **found, "generated_tokens": generated_tokens})
    now_s = time.perf_counter()
    took = {"eval_s": now_s - started_s, "elapsed_s": now_s - began_s}
    log.append("timing.jsonl", {"step": step, **took, "peak_memory_mb": peak_memory_mb(device)})
