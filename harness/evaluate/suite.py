"""Everything that `bench eval` runs on one model: bench's tasks, lm-eval's tasks, and a probe of the tasks' statements.

Tasks of lm-eval run on bench's engines, and every completion is stored. `<home>/evals/<model>/lm_eval-<hash>/` contains
spec.json, samples.jsonl and starts.jsonl, as written by `RememberingSampler`. For each task, `<task>.json` contains the
last scores, the decoding, and a row for each document and filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evals.lm_eval_results import LmEvalResult
from evals.paired_change import PairedChange, change_of_samples, changes_of_lm_eval
from evals.samples import SampleRow
from evals.tasks import runner_of
from evals.tasks.base import Problem, Task
from harness.config.hashing import digest
from harness.evaluate.evaluation import TaskEvaluation
from harness.evaluate.probe import StatementProbe
from harness.plan.subject import Subject
from harness.records.files import file_name, write_json
from harness.run.provenance import append_start
from harness.sampling.sampler import Policy
from harness.sampling.services import services_in
from harness.sampling.store import OnProgress, RememberingSampler, ignore_progress


@dataclass(frozen=True)
class LmEvaluation:
    tasks: Sequence[str]
    """The names of tasks, groups or tags."""
    documents: int | None = None
    """The number of documents per task, counted from the first; None for all."""
    max_gen_toks: int | None = None
    """A limit that replaces each task's own; None keeps the task's."""
    include_path: Path | None = None
    """A folder with further task files."""
    apply_chat_template: bool = False
    seed: int = 0

    def folder(self, home: Path, subject: Subject) -> Path:
        """Return the folder for a model's completions and results."""
        conditions = digest(subject.conditions(self.seed))
        return home / "evals" / subject.label / f"lm_eval-{conditions[:10]}"

    def run(
        self,
        subject: Subject,
        home: Path,
        policy: Policy,
        on_progress: OnProgress = ignore_progress,
    ) -> LmEvalResult:
        """Evaluate the subject and write one file per task.

        policy: the policy of the subject. Raises as `run_lm_eval` and `claimed`.
        """
        folder, asked = self.folder(home, subject), subject.conditions(self.seed)
        with RememberingSampler.opened(folder, asked, policy, append_start, on_progress) as remembering:
            result = runner_of("lm_eval:")(
                self.tasks,
                remembering,
                max_gen_toks=self.max_gen_toks,
                limit=self.documents,
                include_path=self.include_path,
                apply_chat_template=self.apply_chat_template,
            )
            for task in result.tasks:
                rows = [row for row in result.rows if row["task"] == task.name]
                write_json(
                    folder / f"{file_name(task.name)}.json",
                    asdict(task)
                    | {"metrics": [asdict(one) for one in result.metrics if one.task == task.name], "rows": rows},
                )
        return result


@dataclass(frozen=True)
class SuiteResult:
    label: str
    evaluations: list[dict[str, Any]]
    """The contents of scores.json, one for each evaluation."""
    samples: list[list[SampleRow]]
    lm_eval: LmEvalResult | None
    lm_eval_folder: Path | None
    """The folder with `<task>.json` for each of lm-eval's tasks."""
    memorisation: list[dict[str, object]]

    @property
    def lm_eval_files(self) -> list[Path]:
        if self.lm_eval is None or self.lm_eval_folder is None:
            return []
        return [self.lm_eval_folder / f"{file_name(task.name)}.json" for task in self.lm_eval.tasks]

    def as_json(self) -> dict[str, object]:
        """Return the results without samples, which are in the files that the document names.

        Parts that were not requested are left out.
        """
        document: dict[str, object] = {"model": self.label, "evaluations": self.evaluations}
        if self.lm_eval is not None:
            document["lm_eval"] = {
                "tasks": [asdict(task) for task in self.lm_eval.tasks],
                "metrics": [asdict(metric) for metric in self.lm_eval.metrics],
                "path": str(self.lm_eval_folder),
            }
        if self.memorisation:
            document["memorisation"] = self.memorisation
        return document


@dataclass(frozen=True)
class Suite:
    subject: Subject
    tasks: Sequence[TaskEvaluation]
    lm_eval: LmEvaluation | None = None
    probe: StatementProbe | None = None
    probe_tokens: int | None = None
    """The most tokens of the completions that the probe samples; None for its own limit."""

    def run(
        self,
        home: Path,
        policy: Policy | None,
        progress: Callable[[str], OnProgress],
        tell: Callable[[str], None] = lambda remark: None,
    ) -> SuiteResult:
        """Run everything and return the results.

        policy: None if nothing may be sampled, which only bench's own tasks allow.
        progress: maps the name of a stage to its progress callback.
        tell: called with remarks on samples that exist already.
        Raises as `TaskEvaluation.run`, `LmEvaluation.run` and the probe.
        """
        # The probe's problems are checked before anything that takes time.
        statements, probe = self._statements(), self.probe
        if probe is not None:
            for task, problems in statements:
                probe.require(task, problems)
        # lm-eval runs first, because faults of its tasks only show when it runs.
        lm_eval = None
        if self.lm_eval is not None:
            lm_eval = self.lm_eval.run(self.subject, home, _required(policy), progress("lm-eval"))
        evaluations = [task.run(home, policy, progress(task.name), tell) for task in self.tasks]
        memorisation = []
        if probe is not None:
            # The probe uses the graders of the tasks, which run programs only if this is allowed.
            with services_in(home, any(task.allow_code for task in self.tasks)):
                for task, problems in statements:
                    told = progress(f"{task.name}, statements")
                    asked = (self.subject, task, problems, home, _required(policy), told, self.probe_tokens)
                    memorisation.append(probe.run(*asked))
        return SuiteResult(
            self.subject.label,
            evaluations,
            [task.rows(home) for task in self.tasks],
            lm_eval,
            None if self.lm_eval is None else self.lm_eval.folder(home, self.subject),
            memorisation,
        )

    def _statements(self) -> list[tuple[Task, Sequence[Problem]]]:
        """Return each task once, even if it is evaluated with several thinking budgets."""
        return list({one.conditions.task.name: (one.conditions.task, one.problems) for one in self.tasks}.values())


def paired_changes(before: SuiteResult, after: SuiteResult) -> list[PairedChange]:
    """Return the changes in score between two models under the same suite.

    Raises EvalError if lm-eval's documents or prompts differ.
    """
    changes = []
    # Both results come from the same suite, so their evaluations are in the same order.
    for document, earlier, later in zip(after.evaluations, before.samples, after.samples, strict=True):
        change = change_of_samples(earlier, later)
        budget = document["thinking_budget_tokens"]
        changes.append(change if budget is None else replace(change, task=f"{change.task}, thinking {budget}"))
    if before.lm_eval is not None and after.lm_eval is not None:
        changes += changes_of_lm_eval(before.lm_eval, after.lm_eval)
    return changes


def _required(policy: Policy | None) -> Policy:
    if policy is None:
        raise ValueError("a suite with lm-eval's tasks or the probe may have to draw: give it a policy")
    return policy
