"""Judges and the models that they ask: how questions reach a model, what replies cost, and how a judge's file is read.

Judges do not send anything themselves: their caller lends them a `Messenger` (`harness.sampling.services`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from evals.errors import EvalError
from evals.grading import NO_VERDICT, JudgeReply, Verdict
from evals.prompts import Message
from evals.yaml_file import ENDINGS, load_yaml
from harness import plugins
from harness.plugins import Kind


class Question(NamedTuple):
    """A question to a model."""

    name: str
    """A digest of everything that the reply depends on, except the model's files."""
    messages: list[Message]


class AskedFile(Protocol):
    """The parts of a judge's file that code outside the judge reads."""

    @property
    def address(self) -> str | None: ...
    @property
    def api_key_env(self) -> str | None: ...
    @property
    def source(self) -> str | None: ...
    @property
    def shown(self) -> set[str]:
        """The placeholders in the judge's text."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


class Asking(Protocol):
    """A judge that asks a model. version: a digest of everything that can change a verdict."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> AskedFile: ...
    @property
    def version(self) -> int | str: ...


@dataclass(frozen=True)
class JudgeSort:
    """One kind of judge. read: returns the judge at a path; raises EvalError if the file is missing or faulty."""

    name: str
    summary: str
    read: Callable[[str], Any]


JUDGES: Kind[JudgeSort] = Kind(
    "sort of judges", lambda thing: isinstance(thing, JudgeSort), "evals.grading", "bench ls judges"
)
ONE, PAIRWISE = "one", "pairwise"
"""The kinds of judges: those that grade one completion, and those of the reward part `pairwise`."""


def judge_in(name: str) -> Asking | None:
    """Read the judge of either kind in a YAML file, or return None if the name does not refer to a judge's file.

    Raises as `JudgeSort.read`.
    """
    if not name.endswith(ENDINGS) or not (path := plugins.user_file(name)).is_file():
        return None
    if "parse" not in (found := load_yaml(path)):
        return None
    sees_two = any(f"{{{hole}}}" in str(found.get("text")) for hole in ("first", "second"))
    judge: Asking = JUDGES.find(PAIRWISE if sees_two else ONE).read(name)
    return judge


class Messenger(Protocol):
    """Sends questions to models."""

    requests: int
    """The number of requests sent to servers so far, including retries."""

    def ask(self, judge: Asking, questions: Sequence[Question]) -> list[JudgeReply]:
        """Return the reply to each question, in order; equal questions are asked once."""

    def require(self, judge: Asking) -> None:
        """Raise RefusedError if the judge's API key is missing or malformed, or if its local model is missing."""


_lent: list[Messenger] = []


@contextmanager
def lent(messenger: Messenger) -> Iterator[None]:
    """Let judges ask through this messenger, in all threads of the process, until the block ends."""
    _lent.append(messenger)
    try:
        yield
    finally:
        _lent.remove(messenger)


def requests_sent() -> int:
    """Return how many requests this process has sent to judges so far, including retries."""
    return _lent[-1].requests if _lent else 0


def messenger() -> Messenger:
    """Return the messenger that was lent last. Raises EvalError if none was."""
    if not _lent:
        raise EvalError("evals.judge_not_askable")
    return _lent[-1]


def reply_costs(replies: Iterable[JudgeReply]) -> dict[str, float | None]:
    """Return the cost of replies, as fields `judge/*` of a step. Replies to equal questions count once.

    The cost is that of the original requests, whichever run made them, so it does not depend on the cache.
    """
    by_question = {reply.question: reply for reply in replies}
    return {
        "judge/questions": len(by_question),
        "judge/prompt_tokens": sum(reply.prompt_tokens for reply in by_question.values()),
        "judge/completion_tokens": sum(reply.completion_tokens for reply in by_question.values()),
    }


def reply_metrics(verdicts: Sequence[tuple[Verdict, Verdict | None]]) -> dict[str, float | None]:
    """Return the cost and content of a judge's replies, as fields `judge/*` of a step; {} if the grader is not a judge.

    verdicts: each completion's verdict by the judge, and by the task's own grader if it has one.
    `agreement_frac` and `kappa` cover completions with a verdict from both. `rule_correct` is the share that the task's
    own grader finds correct.
    """
    replies = [one.reply for one, _ in verdicts if one.reply is not None]
    if not replies:
        return {}
    pairs = [
        (verdict.correct, rule.correct)
        for verdict, rule in verdicts
        if rule is not None and not NO_VERDICT & {verdict.reason, rule.reason}
    ]
    ruled = [rule.correct for _, rule in verdicts if rule is not None]
    return {
        **reply_costs(replies),
        "judge/undecided_frac": sum(one.reason == "undecided" for one, _ in verdicts) / len(verdicts),
        "judge/rule_correct": sum(ruled) / len(ruled) if ruled else None,
        "judge/agreement_frac": agreement(pairs),
        "judge/kappa": cohens_kappa(pairs),
    }


def agreement(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Return the share of pairs whose two verdicts are equal, or None if there are no pairs."""
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def cohens_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Return the agreement of two graders, corrected for chance: (p - e) / (1 - e) (Cohen 1960).

    p is the share of equal verdicts, and e the share expected of independent graders with the same rates. 1 is full
    agreement, 0 is chance. None if there are no pairs, or if both graders always give the same verdict.
    """
    alike = agreement(pairs)
    if alike is None:
        return None
    a, b = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    by_chance = a * b + (1 - a) * (1 - b)
    return None if by_chance == 1 else (alike - by_chance) / (1 - by_chance)
