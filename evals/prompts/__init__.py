"""Prompt templates: YAML files in this folder or in plug-ins, and the user's own YAML files, named by path."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Literal, TypedDict

from evals.errors import EvalError
from evals.yaml_file import ENDINGS, read_yaml
from harness import plugins
from harness.plugins import Kind
from harness.settings import Listed, Settings

if TYPE_CHECKING:
    from evals.tasks.base import Problem

HOLE = "{problem}"
SOLUTION = "{solution}"
"""A placeholder that only prompts for teachers may contain."""
MODE = "{mode}"
"""A placeholder for the flag that asks for steps first, or for the answer at once."""

Mode = Literal["think", "direct"]
"""think: first the steps, then the answer. direct: the answer at once."""


class Message(TypedDict):
    """One turn of a chat, in the form that tokenizers' chat templates take."""

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
        """Return the fault of these settings in a template with this text, with the remedy; None if they fit."""
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
        """Return a solution's steps and its answer, without the mark between them; None if it contains no steps."""
        steps, mark, answer = solution.partition(self.end)
        return (steps, answer) if mark and steps.strip() else None


AS_QWEN3 = Thinking()
"""No modes, and Qwen3's end and stop texts."""


@dataclass(frozen=True)
class Template:
    """A prompt with a placeholder `{problem}`.

    A teacher's template may also contain `{solution}`, and a template with two modes of thinking contains `{mode}`.

    Raises EvalError for a text without `{problem}`, a plain prompt with a system message, stop strings that are not a
    tuple of texts, or modes that do not differ.
    """

    name: str
    version: int | str
    """For a named template, raise this whenever a field other than the name changes. For a user's file, it is the
    digest of the content. It is part of a run's semantic hash (`template_version`), so that scores under different
    texts are never mixed.
    """
    text: str
    system: str | None = None
    """The system message of a chat prompt; None for no system message."""
    chat: bool = False
    """True if the prompt is a list of messages, for the tokenizer's chat template; False for plain text."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, because nothing after them belongs to the answer. Sampling stops at the first of
    them, at the end token, or at a stop string of the caller.
    """
    thinking: Thinking = AS_QWEN3
    """The modes, and how thinking ends."""

    def __post_init__(self) -> None:
        if HOLE not in self.text:
            raise EvalError("evals.template_without_problem", template=self.name, hole=HOLE)
        if self.system is not None and not self.chat:
            raise EvalError("evals.system_in_plain_template", template=self.name)
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise EvalError("evals.malformed_template_stop", template=self.name, stop=self.stop)
        if fault := self.thinking.fault(self.text):
            raise EvalError("evals.in_template", template=self.name, fault=fault)

    @property
    def summary(self) -> str:
        """The form and the beginning of the prompt, in one line."""
        return f"{'a chat' if self.chat else 'plain text'}: {shorten(f'{self.system or str()} {self.text}', 90)}"

    @property
    def shows_solution(self) -> bool:
        """True if the prompt shows the problem's solution, which only a teacher's prompt may do."""
        return SOLUTION in self.text

    @property
    def has_modes(self) -> bool:
        return MODE in self.text

    def ask(self, problem: Problem, **others: str) -> str | list[Message]:
        """Return the prompt of a problem, in its mode. others: as in `render`."""
        return self.render(problem.problem, problem.mode, **others)

    def render(self, problem: str, mode: Mode = "think", **others: str) -> str | list[Message]:
        """Return the prompt of a problem.

        others: texts for further placeholders, by name. Braces and backslashes in these texts are kept unchanged.
        """
        filled = {"problem": problem, **others}
        if self.has_modes:
            filled["mode"] = self.thinking.think if mode == "think" else self.thinking.direct
        holes = "|".join(map(re.escape, filled))
        # Fill all placeholders in one pass, so that a `{solution}` inside a problem is not replaced.
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
    """Read a user's file once per process, so that an edit does not change the prompts of running cells."""
    file = read_yaml(path, _TemplateFile, "template")
    content: list[object] = [file.text, file.system, file.chat, list(file.stop)]
    # Files without `thinking` keep the digest from before the field existed.
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
    """Return a shipped template or a plug-in's by name, or a user's own by the path of its YAML file.

    See `plugins.user_file`. Raises UnknownNameError, or EvalError if the file is faulty or missing.
    """
    return _read_own(plugins.user_file(name).resolve()) if name.endswith(ENDINGS) else TEMPLATES.find(name)


def template_version(name: str) -> int | str:
    """Return what represents a template in a hash.

    It is the version of a shipped template, the digest of a plug-in's source, or the digest of the content of a user's
    file. Raises as `get_template`.
    """
    source = None if name.endswith(ENDINGS) else TEMPLATES.source(name)
    return get_template(name).version if source is None else source.digest
