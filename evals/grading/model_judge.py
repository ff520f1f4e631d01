"""Judges: graders that ask a model. A judge is a YAML file of the user's own, named by its path where a grader is.

The file says which model is asked and where (at an OpenAI-compatible address, or in process), what the question is, and
how the reply is parsed into a verdict. Judges do not send anything themselves: whoever runs them lends a `Messenger`,
which also caches replies (`harness.sampling.judge_replies`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from pydantic import Field

from evals.errors import EvalError
from evals.grading import NO_VERDICT, AsksModel, Reason, Reply, Submission, Verdict, get_grader
from evals.prompts import Message
from evals.yaml_file import Declared, read_yaml
from harness import plugins

HOLES = ("problem", "answer", "completion", "extracted")
_HOLE = re.compile("{(" + "|".join(HOLES) + ")}")
_THOUGHTS_END = "</think>"


class JudgeFile(Declared):
    """What a judge's file says. Only the fields of `_SERVICE` cannot change a verdict."""

    address: str | None = Field(None, description="base URL of an OpenAI-compatible server, up to /v1")
    model: str | None = Field(None, min_length=1, description="the model's name at the address")
    api_key_env: str | None = Field(None, description="the environment variable that holds the key; none = no key")
    source: str | None = Field(None, description="instead of an address: a model.source, loaded in process")
    system: str | None = Field(None, description="the system message")
    text: str = Field(description="the question, with {completion} or {extracted}; also {problem} and {answer}")
    temperature: float = Field(0.0, ge=0, le=2, description="0 = greedy")
    max_completion_tokens: int = Field(512, ge=1, le=1_000_000, description="a longer reply is cut")
    parse: str = Field(description="a regular expression with one group; its last match in the reply is the verdict")
    right: tuple[str, ...] = Field((), description="verdicts that mean a right answer; case is ignored")
    wrong: tuple[str, ...] = Field((), description="verdicts that mean a wrong answer; case is ignored")
    right_from: float | None = Field(None, description="instead of both: the lowest number that means a right answer")
    largest: float = Field(10.0, gt=0, description="the number that is scaled to a score of 1; 0 stays 0")
    concurrency: int = Field(8, ge=1, le=1024, description="questions asked at once")
    timeout_s: float = Field(120.0, gt=0, description="time limit for one reply")
    patience_s: float = Field(600.0, ge=0, description="how long a server may be away before the cell is interrupted")

    @property
    def holes(self) -> set[str]:
        return set(_HOLE.findall(self.text))

    def faults(self) -> Iterator[str]:
        """The faults of the file, each with its remedy. Values that may be a misplaced secret are not shown."""
        if (self.address is None) == (self.source is None):
            both = "both an address and a source" if self.address else "neither an address nor a source"
            yield f"a judge has {both}: give `address` (http://host:port/v1) and `model`, or give `source` alone"
        elif self.address is None and (self.model, self.api_key_env) != (None, None):
            yield "model and api_key_env belong to an `address`: replace `source` by it, or leave them out"
        elif self.address is not None:
            yield from _address_faults(self.address)
            if self.model is None:
                yield "model: is missing; it is the model's name at the address"
        # The value may be the key itself.
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            yield "api_key_env: is the name of an environment variable, never the key itself"
        if not {"completion", "extracted"} & self.holes:
            yield (
                "text: has neither {completion} nor {extracted}, so all answers would get the same verdict; put one of "
                "them into the text"
            )
        try:
            groups = re.compile(self.parse).groups
        except re.error as error:
            yield f"parse: is not a regular expression: {error}"
        else:
            if groups != 1:
                yield f"parse: has {groups} groups, but needs one, around the verdict, e.g. 'Verdict: (yes|no)'"
        yield from self._verdict_faults()

    def _verdict_faults(self) -> Iterator[str]:
        right, wrong = _folded(self.right), _folded(self.wrong)
        if self.right_from is None and not (right and wrong):
            yield "the meaning of verdicts is missing: give the words `right` and `wrong`, or `right_from` for numbers"
        if self.right_from is not None and (right or wrong):
            yield "right_from is for numbers, `right` and `wrong` are for words: give only one of the two"
        if both_ways := right & wrong:
            yield f"{min(both_ways)!r} is among both `right` and `wrong`: leave it out of one"
        if self.right_from is not None and not 0 < self.right_from <= self.largest:
            yield f"right_from: is {self.right_from:g}, but must be above 0 and at most `largest`, {self.largest:g}"


def _address_faults(address: str) -> Iterator[str]:
    parts = urlsplit(address)
    if parts.username or parts.password:
        yield "address: holds a user or a password; name the environment variable of the key by api_key_env"
    elif parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        yield f"address: is {address!r}, but must be like http://host:port/v1"


def _folded(words: Iterable[str]) -> set[str]:
    return {word.strip().casefold() for word in words}


_SERVICE = ("address", "api_key_env", "concurrency", "timeout_s", "patience_s")
"""Fields that say where and how patiently the model is asked. They cannot change a verdict, so no hash covers them."""


class Question(NamedTuple):
    """A question to a judge. name: a digest of everything that the reply depends on, except the model's files."""

    name: str
    messages: list[Message]


class Messenger(Protocol):
    """Sends questions to judges' models. requests: how many went to servers so far, retries included."""

    requests: int

    def ask(self, judge: Judge, questions: Sequence[Question]) -> list[Reply]:
        """The reply to each question, in order; equal questions are asked once."""


@dataclass(frozen=True)
class Judge(AsksModel):
    """A judge as its file says. version: a digest of what can change a verdict."""

    file: JudgeFile = None  # type: ignore[assignment]  # dataclasses want defaults after those of Grader

    def verdicts(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """A verdict for each submission, all asked together. If the judge sees only the extracted answer and there is
        none, it is not asked.

        Raises EvalError if no messenger was lent, and what the messenger raises.
        """
        shows_completion = "completion" in self.file.holes
        asked = [one for one in submissions if shows_completion or one.extracted is not None]
        replies = iter(_messenger().ask(self, [self.question(one) for one in asked]) if asked else ())
        return [
            self.read(next(replies), one.extracted)
            if shows_completion or one.extracted is not None
            else Verdict(False, None, "unparsed", score=None if self.file.right_from is None else 0.0)
            for one in submissions
        ]

    @property
    def at_once(self) -> int:
        return self.file.concurrency

    def requests_sent(self) -> int:
        return _lent[-1].requests if _lent else 0

    def question(self, submission: Submission) -> Question:
        """All holes are filled in one pass, so an `{answer}` that a completion writes is left alone."""
        texts = {name: getattr(submission, name) or "" for name in HOLES}
        content = _HOLE.sub(lambda hole: str(texts[hole[1]]), self.file.text)
        system: list[Message] = [] if self.file.system is None else [{"role": "system", "content": self.file.system}]
        messages: list[Message] = [*system, {"role": "user", "content": content}]
        return Question(_digest([self.decoding, messages]), messages)

    @property
    def decoding(self) -> dict[str, Any]:
        """The fields of the file, other than the question, that decide a reply."""
        file = self.file
        kept = {"temperature": file.temperature, "max_completion_tokens": file.max_completion_tokens}
        return {"model": file.model or file.source, **kept}

    def read(self, reply: Reply, extracted: str | None) -> Verdict:
        """The verdict from the last match of `parse` after the model's thoughts; `undecided` if nothing matches."""
        found = re.findall(self.file.parse, reply.text.rpartition(_THOUGHTS_END)[2])
        correct, score = self._meaning(found[-1].strip()) if found else (None, None)
        reason: Reason = "undecided" if correct is None else "match" if correct else "mismatch"
        return Verdict(bool(correct), extracted, reason, reply, score)

    def _meaning(self, word: str) -> tuple[bool | None, float | None]:
        """Whether the answer is right (None for an unknown word), and its score from 0 to 1 if it is a number."""
        if self.file.right_from is None:
            said = {True: _folded(self.file.right), False: _folded(self.file.wrong)}
            return next((is_right for is_right, words in said.items() if word.casefold() in words), None), None
        try:
            number = float(word)
        except ValueError:
            return None, None
        if not 0 <= number <= self.file.largest:  # NaN is not between them either
            return None, None
        return number >= self.file.right_from, number / self.file.largest


def read_judge(name: str) -> Judge:
    """The judge in a YAML file. Raises EvalError if the file is missing or faulty."""
    return _judge_in(str(plugins.user_file(name).resolve()), name)


@plugins.cached
def _judge_in(path: str, name: str) -> Judge:
    """Read once per process, so that editing the file does not change verdicts of a running cell."""
    file = read_yaml(Path(path), JudgeFile, "judge")
    if faults := list(file.faults()):
        raise EvalError(f"the judge file {path} has faults:\n" + "\n".join(f"  {fault}" for fault in faults))
    version = _digest(file.model_dump(mode="json", exclude=set(_SERVICE)))
    who = file.model or file.source
    where = "in process" if file.address is None else f"at {file.address}"
    return Judge(name, version, f"{who} {where} says so", _never, needs_answer="answer" in file.holes, file=file)


def _never(candidate: str, answer: str) -> Reason:
    raise AssertionError("a judge reads submissions, never two answers")


def _digest(document: Any) -> str:
    return hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=20).hexdigest()


def judge_of(grader: str | None) -> Judge | None:
    """The judge if the grader of this name is one, else None. Raises as `get_grader`."""
    found = None if grader is None else get_grader(grader)
    return found if isinstance(found, Judge) else None


_lent: list[Messenger] = []


@contextmanager
def lent(messenger: Messenger) -> Iterator[None]:
    """Let judges ask through this messenger, in all threads of the process, until the block ends."""
    _lent.append(messenger)
    try:
        yield
    finally:
        _lent.remove(messenger)


def reply_metrics(verdicts: Sequence[tuple[Verdict, Verdict | None]]) -> dict[str, float | None]:
    """Cost and content of a judge's replies, as fields `judge/*` of a step; {} for verdicts of another grader.

    Costs are those of the original request, in whichever run that was, so they do not depend on what is cached.
    verdicts: by the judge and by the task's own grader, if it has one. `agreement_frac` and `kappa` are over
    completions with a verdict from both; `rule_correct` is the share that the task's own grader finds right.
    """
    replies = {one.reply.question: one.reply for one, _ in verdicts if one.reply is not None}
    if not replies:
        return {}
    pairs = [
        (verdict.correct, rule.correct)
        for verdict, rule in verdicts
        if rule is not None and not NO_VERDICT & {verdict.reason, rule.reason}
    ]
    ruled = [rule.correct for _, rule in verdicts if rule is not None]
    return {
        "judge/questions": len(replies),
        "judge/prompt_tokens": sum(reply.prompt_tokens for reply in replies.values()),
        "judge/completion_tokens": sum(reply.completion_tokens for reply in replies.values()),
        "judge/undecided_frac": sum(one.reason == "undecided" for one, _ in verdicts) / len(verdicts),
        "judge/rule_correct": sum(ruled) / len(ruled) if ruled else None,
        "judge/agreement_frac": agreement(pairs),
        "judge/kappa": cohens_kappa(pairs),
    }


def agreement(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Share of pairs whose two verdicts are equal; None without pairs."""
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def cohens_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Agreement of two graders, corrected for chance: (p - e) / (1 - e), where p is the share of equal verdicts and e
    the share expected of independent graders with the same rates (Cohen 1960). 1 is full agreement, 0 is chance. None
    without pairs, and if both graders always give one and the same verdict."""
    alike = agreement(pairs)
    if alike is None:
        return None
    a, b = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    by_chance = a * b + (1 - a) * (1 - b)
    return None if by_chance == 1 else (alike - by_chance) / (1 - by_chance)


def _messenger() -> Messenger:
    if not _lent:
        raise EvalError(
            "the grader is a judge, and only `bench run`, `bench tune` and `bench eval` can ask judges. Name another "
            "grader here."
        )
    return _lent[-1]
