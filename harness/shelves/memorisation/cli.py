"""The probe of `bench eval --memorisation` for memorised statements, with its completions kept.

`<home>/evals/<model>/memorisation-<hash>/` holds spec.json, samples.jsonl and starts.jsonl, as `RememberingSampler`
writes them, and `<task>.json`: the summary, and each completion next to the expected text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.console import print_table, print_text
from harness.evaluate.probe import StatementProbe

if TYPE_CHECKING:
    from evals.tasks.base import Problem, Task
    from harness.plan.subject import Subject
    from harness.sampling.sampler import Policy
    from harness.sampling.store import OnProgress

PROBE_TOKENS = 512
"""The default length: room for the rest of a statement and a short solution."""


class MemorisationProbe(StatementProbe):
    """Lets a model complete statements greedily."""

    def require(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raise EvalError if all statements are too short."""
        from harness.shelves.memorisation.statements import require_statements

        require_statements(task, problems)

    def run(
        self,
        subject: Subject,
        task: Task,
        problems: Sequence[Problem],
        home: Path,
        policy: Policy,
        on_progress: OnProgress,
        max_completion_tokens: int | None = None,
    ) -> dict[str, object]:
        """Run the probe. Returns the fields of `Memorisation`, with the task, the share given and the path.

        Completions are greedy, so there is no seed. Raises EvalError as `probe`, and RefusedError as `store.claimed`.
        """
        from dataclasses import asdict

        from harness.config.hashing import digest
        from harness.records.files import file_name, write_json
        from harness.run.provenance import append_start
        from harness.sampling.store import RememberingSampler
        from harness.shelves.memorisation.statements import GIVEN_FRAC, probe, summarise

        asked = subject.conditions(seed=0)
        folder = home / "evals" / subject.label / f"memorisation-{digest(asked)[:10]}"
        with RememberingSampler.opened(folder, asked, policy, append_start, on_progress) as remembering:
            completions = probe(task, problems, remembering, max_completion_tokens or PROBE_TOKENS)
            path = folder / f"{file_name(task.name)}.json"
            document = {"task": task.name, "given_frac": GIVEN_FRAC, **asdict(summarise(completions, len(problems)))}
            write_json(path, document | {"completions": [asdict(one) for one in completions]})
        return document | {"path": str(path)}

    def show(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        from harness.cli.eval_tables import percent

        print_table(
            f"{summaries[0]['given_frac']:.0%} of each statement given, the rest asked for",
            ["task", "problems", "too short", "completed word for word (%)", "ROUGE-L", "answer came out (%)"],
            [
                [
                    *(one["task"], str(one["problems"]), str(one["skipped"])),
                    *(percent(one["exact_frac"]), f"{one['rouge_l']:.3f}", percent(one["correct_frac"])),
                ]
                for one in summaries
            ],
        )
        print_text("Compare with a model older than the problems: a statement can be guessed in part.")


MEMORISATION = MemorisationProbe()
