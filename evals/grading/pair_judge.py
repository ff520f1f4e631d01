"""Judges of two completions: YAML files of the user's own with a model, a question, and the pattern of two scores.

`harness.rewards.judging` asks them in both orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from evals.grading import Reply
from evals.grading.asked_model import ModelFile, messenger
from evals.grading.model_judge import Judge, read_judge
from evals.yaml_file import ENDINGS, load_yaml
from harness import plugins


class PairJudgeFile(ModelFile):
    """What a pairwise judge's file says."""

    holes: ClassVar[tuple[str, ...]] = ("problem", "first", "second")
    groups: ClassVar[tuple[int, str]] = (
        2,
        "two, around the scores of the first and the second completion, e.g. 'Scores: ([0-9.]+), ([0-9.]+)'",
    )

    text: str = Field(description="the question, with {first} and {second}; also {problem}")
    parse: str = Field(
        description="a regular expression with two groups; its last match in the reply holds the scores of the first "
        "and the second completion"
    )

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if missing := [f"{{{hole}}}" for hole in ("first", "second") if hole not in self.shown]:
            yield f"text: has no {' and no '.join(missing)}; a pairwise judge must see both completions"


@dataclass(frozen=True)
class PairJudge:
    """A `harness.rewards.judging.Judge` as described by its file."""

    name: str
    file: PairJudgeFile

    @property
    def version(self) -> str:
        return self.file.version

    def scores(self, pairs: Sequence[tuple[str, str, str]]) -> list[tuple[float, float, Reply]]:
        """Return, for each (problem, first, second), the scores of both and the reply that holds them.

        Scores are NaN if the reply has none. Raises EvalError if no messenger was lent, and what the messenger raises.
        """
        questions = [self.file.question(dict(zip(PairJudgeFile.holes, pair, strict=True))) for pair in pairs]
        return [(*self._read(reply), reply) for reply in messenger().ask(self, questions)]

    def _read(self, reply: Reply) -> tuple[float, float]:
        found = self.file.last_match(reply)
        try:
            scores = (math.nan, math.nan) if found is None else (float(found[1]), float(found[2]))
        except (TypeError, ValueError):  # a group that matches no number, or nothing
            return math.nan, math.nan
        return scores if all(map(math.isfinite, scores)) else (math.nan, math.nan)


def read_pair_judge(name: str) -> PairJudge:
    """Return the pairwise judge in a YAML file. Raises EvalError if the file is missing or faulty."""
    return _judge_in(str(plugins.user_file(name).resolve()), name)


def judge_in(name: str) -> Judge | PairJudge | None:
    """Return the judge of either kind in a YAML file; None if the name is not that of a file with a judge's keys.

    Raises as `read_judge`.
    """
    if not name.endswith(ENDINGS) or not (path := plugins.user_file(name)).is_file():
        return None
    if "parse" not in (found := load_yaml(path)):
        return None
    # Only the text tells the two kinds apart: a pairwise judge has placeholders for two completions.
    sees_two = any(f"{{{hole}}}" in str(found.get("text")) for hole in ("first", "second"))
    return read_pair_judge(name) if sees_two else read_judge(name)


@plugins.cached
def _judge_in(path: str, name: str) -> PairJudge:
    """Read a judge once per process, so that editing the file does not change verdicts of a running cell."""
    file = PairJudgeFile.read(Path(path), "pairwise judge")
    return PairJudge(name, file)
