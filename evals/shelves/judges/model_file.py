"""The common part of all judges' YAML files: where the model is, how it decodes, the question, the parsing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import Field

from evals.errors import EvalError
from evals.grading import JudgeReply
from evals.grading.asked_model import Question
from evals.prompts import Message
from evals.yaml_file import read_yaml
from harness.secrets import register_variable
from harness.settings import Settings

_THOUGHTS_END = "</think>"
SERVICE = ("address", "api_key_env", "concurrency", "timeout_s", "patience_s")
"""Fields about where the model is and how long to wait for it. They cannot change a verdict, so no hash covers them."""


class ModelFile(Settings):
    """The fields that the files of all judges share. Only those of `SERVICE` cannot change a verdict."""

    holes: ClassVar[tuple[str, ...]] = ()
    """The placeholders of the text."""
    groups: ClassVar[tuple[int, str]] = (1, "")
    """The number of groups in `parse`, and what they enclose, with an example."""

    address: str | None = Field(None, description="base URL of an OpenAI-compatible server, up to /v1")
    model: str | None = Field(None, min_length=1, description="the model's name at the address")
    api_key_env: str | None = Field(None, description="the environment variable that holds the key; none = no key")
    source: str | None = Field(None, description="instead of an address: a model.source, loaded in process")
    system: str | None = Field(None, description="the system message")
    text: str = Field(description="the question, with its placeholders")
    temperature: float = Field(0.0, ge=0, le=2, description="0 = greedy")
    max_completion_tokens: int = Field(512, ge=1, le=1_000_000, description="a longer reply is cut")
    parse: str = Field(description="a regular expression; its last match in the reply is the verdict")
    concurrency: int = Field(8, ge=1, le=1024, description="questions asked at once")
    timeout_s: float = Field(120.0, gt=0, description="time limit for one reply")
    patience_s: float = Field(600.0, ge=0, description="how long a server may be away before the cell is interrupted")

    @classmethod
    def read(cls, path: Path, noun: str) -> Self:
        """Read a file of this kind. Raises EvalError if it is missing or faulty."""
        file = read_yaml(path, cls, noun, listed=False)
        if faults := list(file.faults()):
            lines = "\n".join(f"  {fault}" for fault in faults)
            refusal = EvalError("evals.shelves.judges.faulty_file", path=path, faults=lines)
            refusal.causes = tuple(faults)
            raise refusal
        return file

    def model_post_init(self, _: object) -> None:
        if self.api_key_env is not None:  # The variable's name may not reveal that it holds a secret.
            register_variable(self.api_key_env)

    @classmethod
    def _hole(cls) -> re.Pattern[str]:
        return re.compile("{(" + "|".join(cls.holes) + ")}")

    @property
    def shown(self) -> set[str]:
        """The placeholders in the text."""
        return set(self._hole().findall(self.text))

    @property
    def version(self) -> str:
        """A digest of the fields that can change a verdict."""
        return _digest(self.model_dump(mode="json", exclude=set(SERVICE)))

    @property
    def decoding(self) -> dict[str, Any]:
        """The fields that affect a reply, except the question."""
        kept = {"temperature": self.temperature, "max_completion_tokens": self.max_completion_tokens}
        return {"model": self.model or self.source, **kept}

    def question(self, filling: Mapping[str, str]) -> Question:
        """Build the question from a text for each placeholder.

        All placeholders are filled in one pass, so a placeholder that a completion contains stays as it is.
        """
        content = self._hole().sub(lambda hole: filling[hole[1]], self.text)
        system: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages: list[Message] = [*system, {"role": "user", "content": content}]
        return Question(_digest([self.decoding, messages]), messages)

    def last_match(self, reply: JudgeReply) -> re.Match[str] | None:
        """Return the last match of `parse` after the model's thoughts, or None."""
        matches = [*re.finditer(self.parse, reply.text.rpartition(_THOUGHTS_END)[2])]
        return matches[-1] if matches else None

    def faults(self) -> Iterator[EvalError]:
        """Yield the faults of the file, each with its remedy. Values that may be a misplaced secret are not shown."""
        if (self.address is None) == (self.source is None):
            both = "both an address and a source" if self.address else "neither an address nor a source"
            yield EvalError("evals.shelves.judges.address_or_source", both=both)
        elif self.address is None and (self.model, self.api_key_env) != (None, None):
            yield EvalError("evals.shelves.judges.model_without_address")
        elif self.address is not None:
            yield from _address_faults(self.address)
            if self.model is None:
                yield EvalError("evals.shelves.judges.address_without_model")
        # The value may be the key itself.
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            yield EvalError("evals.shelves.judges.key_in_file")
        try:
            found = re.compile(self.parse).groups
        except re.error as error:
            yield EvalError("evals.shelves.judges.invalid_pattern", error=error)
        else:
            wanted, around = self.groups
            if found != wanted:
                yield EvalError("evals.shelves.judges.wrong_group_count", found=found, around=around)


def _address_faults(address: str) -> Iterator[EvalError]:
    parts = urlsplit(address)
    if parts.username or parts.password:
        yield EvalError("evals.shelves.judges.secret_in_address")
    elif parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        yield EvalError("evals.shelves.judges.malformed_address", address=address)


def _digest(document: Any) -> str:
    return hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=20).hexdigest()
