"""Prompt templates: the YAML files of this folder, those of plug-ins, and YAML files of the user's own by their
path."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Literal, Protocol, TypedDict

from evals.errors import EvalError
from evals.yaml_file import ENDINGS, read_yaml
from harness import plugins
from harness.plugins import Kind
from harness.settings import Listed, Settings

HOLE = "{problem}"
SOLUTION = "{solution}"
"""A hole that only the prompts of teachers may have."""
MODE = "{mode}"
"""A hole for the flag that asks for steps, or for the answer at once."""

Mode = Literal["think", "direct"]
"""think: the steps are to be written, then the answer; direct: the answer at once."""


class Asked(Protocol):
    """What is read of a problem that is asked, as tasks have them."""

    @property
    def problem(self) -> str: ...
    @property
    def mode(self) -> Mode: ...


class Message(TypedDict):
    """One turn of a chat, as chat templates of tokenizers take it."""

    role: str
    content: str


class Thinking(Settings):
    """How a prompt asks for either mode, and where thinking ends in a completion.

    think, direct: the flags of the modes, which fill `{mode}`.
    end: what stands between steps and answer; its first occurrence ends the thinking.
    stop: what is put behind thoughts that are cut at a budget, so that the answer follows. The default is the
        instruction of Qwen3 (2505.09388).
    """

    think: str = ""
    direct: str = ""
    end: str = "</think>"
    stop: str = (
        "Considering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
        "</think>.\n\n"
    )

    def fault(self, text: str) -> str | None:
        """What is wrong with it in a template of this text, and the remedy; None if nothing is."""
        if not self.end or self.end not in self.stop:
            return (
                f"has thinking.stop={self.stop!r} without thinking.end={self.end!r}, so that thinking would go on "
                "behind it: let the one hold the other"
            )
        if MODE in text and self.think == self.direct:
            return (
                f"asks for both modes with {self.think!r}: give thinking.think and thinking.direct texts that differ, "
                f"or leave {MODE} out"
            )
        if MODE not in text and (self.think or self.direct):
            return f"has flags of modes and no {MODE} in its text: put it where the flag belongs"
        return None

    def parts(self, solution: str) -> tuple[str, str] | None:
        """The steps of a solution and its answer, without the mark between them; None where it shows no steps."""
        steps, mark, answer = solution.partition(self.end)
        return (steps, answer) if mark and steps.strip() else None


AS_QWEN3 = Thinking()
"""Without modes, and with the end and the stop of Qwen3."""


@dataclass(frozen=True)
class Template:
    """A prompt with a hole `{problem}`; a teacher's template may also have `{solution}`, and one with two modes of
    thinking has `{mode}`.

    version: for a named template, raise it whenever a field other than the name changes. For a user's file, the digest
        of its content. It is part of a run's semantic hash (`template_version`), so that scores under two texts never
        mix.
    system: the system message of a chat prompt, or None for none at all.
    chat: whether the prompt is a list of messages (for the tokenizer's chat template) or plain text.
    stop: strings that end a completion because nothing after them belongs to the answer. Whoever samples under this
        template stops at the first of them, at the end token, or at a stop string of its own.
    thinking: the modes, and how thinking ends.

    Raises EvalError for a text without the hole, for a plain prompt with a system message, for stop strings that are
    not a tuple of texts, and for modes that cannot be told apart.
    """

    name: str
    version: int | str
    text: str
    system: str | None = None
    chat: bool = False
    stop: tuple[str, ...] = ()
    thinking: Thinking = AS_QWEN3

    def __post_init__(self) -> None:
        if HOLE not in self.text:
            raise EvalError(f"the template {self.name} has no {HOLE} in its text: put it where the problem belongs")
        if self.system is not None and not self.chat:
            raise EvalError(
                f"the template {self.name} has a system message, but is plain text, which has none: set chat to true, "
                "or put the message into the text"
            )
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise EvalError(
                f"the template {self.name} has stop={self.stop!r}: give a list of texts that are not empty (in Python "
                'a tuple), e.g. ["Question:"]'
            )
        if fault := self.thinking.fault(self.text):
            raise EvalError(f"the template {self.name} {fault}")

    @property
    def summary(self) -> str:
        """Its form and how it begins, in a line."""
        return f"{'a chat' if self.chat else 'plain text'}: {shorten(f'{self.system or str()} {self.text}', 90)}"

    @property
    def shows_solution(self) -> bool:
        """Whether the prompt shows the problem's solution, as only a teacher's may."""
        return SOLUTION in self.text

    @property
    def has_modes(self) -> bool:
        return MODE in self.text

    def ask(self, problem: Asked, **others: str) -> str | list[Message]:
        """The prompt of one problem, in its mode. others: as in `render`."""
        return self.render(problem.problem, problem.mode, **others)

    def render(self, problem: str, mode: Mode = "think", **others: str) -> str | list[Message]:
        """The prompt of one problem. others: texts for further holes, by name. Braces and backslashes in these texts
        are left alone."""
        filled = {"problem": problem, **others}
        if self.has_modes:
            filled["mode"] = self.thinking.think if mode == "think" else self.thinking.direct
        holes = "|".join(map(re.escape, filled))
        prompt = re.sub(rf"{{({holes})}}", lambda hole: filled[hole[1]], self.text)
        if not self.chat:
            return prompt
        system: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]


class _TemplateFile(Settings):
    """A user's file needs neither name nor version; a copy of a shipped one may keep them."""

    name: str | None = None
    version: int | None = None
    text: str
    system: str | None = None
    chat: bool = False
    stop: Listed[str] = ()
    thinking: Thinking = AS_QWEN3

    def template(self, name: str, version: int | str) -> Template:
        return Template(name, version, self.text, self.system, self.chat, self.stop, self.thinking)


def _read_shipped(path: Path) -> Template:
    file = read_yaml(path, _TemplateFile, "template")
    return file.template(file.name or path.stem, file.version or 1)


@plugins.cached
def _read_own(path: Path) -> Template:
    """Read once in a process: an edit does not change the prompts of what is under way."""
    file = read_yaml(path, _TemplateFile, "template")
    content: list[object] = [file.text, file.system, file.chat, list(file.stop)]
    if file.thinking != AS_QWEN3:
        content.append(file.thinking.model_dump())
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=20).hexdigest()
    return file.template(file.name or path.stem, digest)


TEMPLATES: Kind[Template] = Kind(
    "template",
    lambda thing: isinstance(thing, Template),
    "evals.prompts",
    "bench ls templates",
    from_yaml=_read_shipped,
)


def get_template(name: str) -> Template:
    """A shipped template or a plug-in's by its name; a user's own by the path of its YAML file (see
    `plugins.user_file`).

    Raises UnknownNameError, and EvalError for a file that is faulty or not there.
    """
    return _read_own(plugins.user_file(name).resolve()) if name.endswith(ENDINGS) else TEMPLATES.find(name)


def template_version(name: str) -> int | str:
    """What stands for a template in a hash: the version of a shipped one, the digest of a plug-in's source or of the
    content of a user's file. Raises as `get_template`."""
    source = None if name.endswith(ENDINGS) else TEMPLATES.source(name)
    return get_template(name).version if source is None else source.digest
