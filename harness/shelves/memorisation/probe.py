"""The probe for memorised statements (see `statements`), with its completions kept.

`<home>/evals/<model>/memorisation-<hash>/` holds spec.json, samples.jsonl and starts.jsonl, as `RememberingSampler`
writes them, and `<task>.json`: the summary, and each completion next to the expected text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evals.tasks.base import Problem, Task
from harness.config.hashing import digest
from harness.plan.subject import Subject
from harness.records.files import file_name, write_json
from harness.run.provenance import append_start
from harness.sampling.sampler import Policy
from harness.sampling.store import OnProgress, RememberingSampler, ignore_progress
from harness.shelves.memorisation.statements import GIVEN_FRAC, probe, require_statements, summarise

PROBE_TOKENS = 512
"""The default length: room for the rest of a statement and a short solution."""


@dataclass(frozen=True)
class MemorisationProbe:
    """Lets a model complete statements greedily."""

    max_completion_tokens: int = PROBE_TOKENS

    def require(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raise EvalError if all statements are too short."""
        require_statements(task, problems)

    def run(
        self,
        subject: Subject,
        task: Task,
        problems: Sequence[Problem],
        home: Path,
        policy: Policy,
        on_progress: OnProgress = ignore_progress,
    ) -> dict[str, Any]:
        """Run the probe. Returns the fields of `Memorisation`, with the task, the share given and the path.

        Completions are greedy, so there is no seed. Raises EvalError as `probe`, and RefusedError as `store.claimed`.
        """
        asked = subject.conditions(seed=0)
        folder = home / "evals" / subject.label / f"memorisation-{digest(asked)[:10]}"
        with RememberingSampler.opened(folder, asked, policy, append_start, on_progress) as remembering:
            completions = probe(task, problems, remembering, self.max_completion_tokens)
            path = folder / f"{file_name(task.name)}.json"
            document = {"task": task.name, "given_frac": GIVEN_FRAC, **asdict(summarise(completions, len(problems)))}
            write_json(path, document | {"completions": [asdict(one) for one in completions]})
        return document | {"path": str(path)}
