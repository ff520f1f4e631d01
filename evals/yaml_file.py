"""Tasks and prompt templates declared in YAML: a file is read strictly, and reports all its faults at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from evals.errors import EvalError
from harness.errors import nearest


class Declared(BaseModel):
    """What a file, or a section of it, may say. An unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


File = TypeVar("File", bound=Declared)
ENDINGS = (".yaml", ".yml")
"""A name with one of these is the path of a file, not the name of a shipped thing or of a plug-in's."""


def read_yaml(path: Path, kind: type[File], noun: str) -> File:
    """The content of a file. noun: "task", in messages.

    Raises EvalError for a file that is not there or is not YAML, or with all faults of its keys by their dotted paths.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EvalError(
            f"no {noun} file {path}; a {noun} is named by its name (`bench ls {noun}s`) or by the path of a YAML file"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise EvalError(f"the {noun} file {path} cannot be read: {error}") from error
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        faults = "\n".join(f"  {_in_words(fault, kind)}" for fault in error.errors())
        raise EvalError(f"the {noun} file {path} has faults:\n{faults}") from error


def _in_words(fault: Any, kind: type[Declared]) -> str:
    path = ".".join(map(str, fault["loc"])) or "the document"
    if fault["type"] not in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"{path}: {fault['msg']} (given: {fault['input']!r})"
    *section, key = fault["loc"]
    known = _keys(kind.model_json_schema(), section)
    return f"{path}: unknown key{nearest(str(key), known)} The keys here are {', '.join(known)}."


def _keys(schema: dict[str, Any], section: Sequence[str | int]) -> list[str]:
    """The keys that a section may have, by the JSON schema of the file."""
    node = schema
    for key in section:
        node = node["properties"][key] if "properties" in node else node["additionalProperties"]
        reference = next((one["$ref"] for one in node.get("anyOf", [node]) if "$ref" in one), None)
        if reference is not None:
            node = schema["$defs"][reference.rpartition("/")[2]]
    return list(node["properties"])
