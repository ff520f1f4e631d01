"""Judges: graders that ask a model. A judge is a YAML file of the user's own; its path replaces a grader's name.

The file says which model is asked and where (at an OpenAI-compatible address, or in process), what the question is, and
how the reply is parsed into a verdict. A judge of two completions is such a file too: its reply has two scores, and
`harness.shelves.learned.judging` asks it in both orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from evals.errors import EvalError
from evals.grading import Grader, JudgeReply, Reason, Submission, Verdict, never_compares
from evals.grading.asked_model import ONE, PAIRWISE, JudgeSort, Question, messenger
from evals.shelves.judges.model_file import ModelFile
from harness import plugins
from harness.settings import Listed


class JudgeFile(ModelFile):
    """The contents of a judge's file."""

    holes: ClassVar[tuple[str, ...]] = ("problem", "answer", "completion", "extracted")
    groups: ClassVar[tuple[int, str]] = (1, "one, around the verdict, e.g. 'Verdict: (yes|no)'")

    text: str = Field(description="the question, with {completion} or {extracted}; also {problem} and {answer}")
    parse: str = Field(description="a regular expression with one group; its last match in the reply is the verdict")
    right: Listed[str] = Field((), description="verdicts that mean a right answer; case is ignored")
    wrong: Listed[str] = Field((), description="verdicts that mean a wrong answer; case is ignored")
    right_from: float | None = Field(None, description="instead of both: the lowest number that means a right answer")
    largest: float = Field(10.0, gt=0, description="the number that is scaled to a score of 1; 0 stays 0")

    def faults(self) -> Iterator[EvalError]:
        yield from super().faults()
        if not {"completion", "extracted"} & self.shown:
            yield EvalError("evals.shelves.judges.text_without_answer")
        yield from self._verdict_faults()

    def _verdict_faults(self) -> Iterator[EvalError]:
        right, wrong = _folded(self.right), _folded(self.wrong)
        if self.right_from is None and not (right and wrong):
            yield EvalError("evals.shelves.judges.verdicts_without_meaning")
        if self.right_from is not None and (right or wrong):
            yield EvalError("evals.shelves.judges.words_and_numbers")
        if both_ways := right & wrong:
            yield EvalError("evals.shelves.judges.right_and_wrong", word=min(both_ways))
        if self.right_from is not None and not 0 < self.right_from <= self.largest:
            yield EvalError(
                "evals.shelves.judges.right_from_out_of_range", right_from=self.right_from, largest=self.largest
            )


def _folded(words: Iterable[str]) -> set[str]:
    return {word.strip().casefold() for word in words}


@dataclass(frozen=True)
class ModelJudge(Grader):
    """A judge, as described by its file. Its version is the file's."""

    reads_whole: ClassVar[bool] = True
    asks_model: ClassVar[bool] = True

    file: JudgeFile = None  # type: ignore[assignment]  # dataclasses want defaults after those of Grader

    def verdicts(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """Return a verdict for each submission. All questions are sent together.

        A judge that sees only the extracted answer is not asked if there is none. Raises EvalError if no messenger was
        lent, and the messenger's errors.
        """
        shows_completion = "completion" in self.file.shown
        asked = [one for one in submissions if shows_completion or one.extracted is not None]
        replies = iter(messenger().ask(self, [self.question(one) for one in asked]) if asked else ())
        return [
            self.read(next(replies), one.extracted)
            if shows_completion or one.extracted is not None
            else Verdict(False, None, "unparsed", score=None if self.file.right_from is None else 0.0)
            for one in submissions
        ]

    @property
    def at_once(self) -> int:
        return self.file.concurrency

    @property
    def gives_scores(self) -> bool:
        return self.file.right_from is not None

    def question(self, submission: Submission) -> Question:
        """Return the question about a submission, with "" for whatever is missing."""
        return self.file.question({name: str(getattr(submission, name) or "") for name in JudgeFile.holes})

    def read(self, reply: JudgeReply, extracted: str | None) -> Verdict:
        """Return the verdict in the last match of `parse` after the model's thoughts; `undecided` if none matches."""
        found = self.file.last_match(reply)
        correct, score = (None, None) if found is None else self._meaning((found[1] or "").strip())
        reason: Reason = "undecided" if correct is None else "match" if correct else "mismatch"
        return Verdict(bool(correct), extracted, reason, reply, score)

    def _meaning(self, word: str) -> tuple[bool | None, float | None]:
        """Return whether the answer is correct (None for an unknown word), and the score in [0, 1] of a number."""
        if self.file.right_from is None:
            said = {True: _folded(self.file.right), False: _folded(self.file.wrong)}
            return next((is_right for is_right, words in said.items() if word.casefold() in words), None), None
        try:
            number = float(word)
        except ValueError:
            return None, None
        if not 0 <= number <= self.file.largest:  # False for NaN, too.
            return None, None
        return number >= self.file.right_from, number / self.file.largest


def read_judge(name: str) -> ModelJudge:
    """Return the judge in a YAML file. Raises EvalError if the file is missing or faulty."""
    return _judge_in(str(plugins.user_file(name).resolve()), name)


@plugins.cached
def _judge_in(path: str, name: str) -> ModelJudge:
    """Read a judge once per process, so that editing the file does not change the verdicts of running cells."""
    file = JudgeFile.read(Path(path), "judge")
    who = file.model or file.source
    where = "in process" if file.address is None else f"at {file.address}"
    return ModelJudge(
        name, file.version, f"{who} {where} says so", never_compares, needs_answer="answer" in file.shown, file=file
    )


ONE_JUDGE = JudgeSort(ONE, "graders: whether one completion is right", read_judge)


class PairJudgeFile(ModelFile):
    """The file of a pairwise judge."""

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

    def faults(self) -> Iterator[EvalError]:
        yield from super().faults()
        if missing := [f"{{{hole}}}" for hole in ("first", "second") if hole not in self.shown]:
            yield EvalError("evals.shelves.judges.text_without_both", missing=" and no ".join(missing))


@dataclass(frozen=True)
class PairJudge:
    """A `harness.shelves.learned.judging.Judge`, as described by its file."""

    name: str
    file: PairJudgeFile

    @property
    def version(self) -> str:
        return self.file.version

    def scores(self, pairs: Sequence[tuple[str, str, str]]) -> list[tuple[float, float, JudgeReply]]:
        """Return, for each (problem, first, second), the scores of both completions and the reply that contains them.

        Scores are NaN if the reply contains none. Raises EvalError if no messenger was lent, and the messenger's
        errors.
        """
        questions = [self.file.question(dict(zip(PairJudgeFile.holes, pair, strict=True))) for pair in pairs]
        return [(*self._read(reply), reply) for reply in messenger().ask(self, questions)]

    def _read(self, reply: JudgeReply) -> tuple[float, float]:
        found = self.file.last_match(reply)
        try:
            scores = (math.nan, math.nan) if found is None else (float(found[1]), float(found[2]))
        except (TypeError, ValueError):  # A group matches no number, or nothing.
            return math.nan, math.nan
        return scores if all(map(math.isfinite, scores)) else (math.nan, math.nan)


def read_pair_judge(name: str) -> PairJudge:
    """Return the pairwise judge in a YAML file. Raises EvalError if the file is missing or faulty."""
    return _pair_judge_in(str(plugins.user_file(name).resolve()), name)


@plugins.cached
def _pair_judge_in(path: str, name: str) -> PairJudge:
    """Read a judge once per process, so that editing the file does not change the verdicts of running cells."""
    file = PairJudgeFile.read(Path(path), "pairwise judge")
    return PairJudge(name, file)


PAIR_JUDGE = JudgeSort(PAIRWISE, "compare two completions, for the reward part pairwise", read_pair_judge)
