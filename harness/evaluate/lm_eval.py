"""lm-eval's tasks as part of `bench eval`: run on our engines, every completion kept, results beside it.

`<home>/evals/<model>/lm_eval-<hash>/`: spec.json, samples.jsonl and starts.jsonl as `RememberingSampler` keeps them,
and `<task>.json` for each task as run last: scores, decoding, and a row for each document and filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evals.lm_eval_adapter import run_lm_eval
from evals.lm_eval_result import LmEvalResult
from harness.config.hashing import digest
from harness.evaluate.evaluation import ignore_progress
from harness.plan.subject import Subject
from harness.records.files import file_name, write_json
from harness.run.provenance import append_start
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import OnProgress, RememberingSampler


@dataclass(frozen=True)
class LmEvaluation:
    """tasks: names of tasks, groups or tags. documents: the first so many of each task; None for all.
    max_gen_toks: instead of each task's own limit. include_path: a folder of more task files."""

    tasks: Sequence[str]
    documents: int | None = None
    max_gen_toks: int | None = None
    include_path: Path | None = None
    apply_chat_template: bool = False
    seed: int = 0

    def folder(self, home: Path, subject: Subject) -> Path:
        """Where a model's completions and results are kept."""
        conditions = digest(subject.conditions(self.seed))
        return home / "evals" / subject.label / f"lm_eval-{conditions[:10]}"

    def run(
        self,
        subject: Subject,
        home: Path,
        sampler: Callable[[], EngineSampler],
        on_progress: OnProgress = ignore_progress,
    ) -> LmEvalResult:
        """sampler: of the subject; is called if anything is to be drawn. Raises as `run_lm_eval` and `claimed`."""
        folder, asked = self.folder(home, subject), subject.conditions(self.seed)
        with RememberingSampler.opened(folder, asked, sampler, append_start, on_progress) as remembering:
            result = run_lm_eval(
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
