"""Safe reading of YAML files: sweeps, profiles, probes and recipes as mappings; tasks and prompt templates strictly.

Strictly read files report all their faults at once. Scalars follow YAML 1.2: `1e-4` is a number, `off` and `yes` are
strings. A repeated key is an error. A file is refused before use if it is nested too deeply, contains too much
(including aliases that multiply each other), or has an integer that no record can store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from evals.errors import EvalError
from harness.errors import RefusedError, shown
from harness.settings import Settings
from harness.settings.faults import faults_of

MOST_BYTES = 1_000_000
MOST_VALUES = 20_000
"""The limit includes keys. A thousand arms that each set a few knobs have about ten thousand values."""
MOST_DEPTH = 32
LARGEST_INTEGER = 2**63 - 1
"""Larger integers cannot be stored: neither a table nor the mirror's database supports them."""


class YamlError(RefusedError):
    """The text is not YAML, or there is too much of it. The message continues a sentence: `is not valid YAML: ...`."""


class _Yaml12Loader(yaml.SafeLoader):
    """SafeLoader with limits, and with the scalar rules of YAML 1.2's core schema instead of 1.1's."""

    takes_tags = False
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def __init__(self, text: str) -> None:
        super().__init__(text)
        # Apply the limits while parsing: otherwise a document of a few bytes could take up all memory or stack.
        self._depth = self._n_values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line, tag = event.start_mark.line + 1, getattr(event, "tag", None)
        self._depth += 1
        self._n_values += 1
        if self._depth > MOST_DEPTH:
            raise YamlError("evals.yaml_nested_too_deep", most_depth=MOST_DEPTH, line=line)
        if self._n_values > MOST_VALUES:
            raise YamlError("evals.too_many_yaml_values", most_values=MOST_VALUES, line=line)
        if tag is not None and not self.takes_tags:
            raise YamlError("evals.yaml_tag_not_allowed", tag=shown(tag), line=line)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):  # No dict can have this as a key.
                break
            if key in seen:
                mark = key_node.start_mark
                raise yaml.constructor.ConstructorError(None, None, f"key {shown(key)} is given twice", mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Yaml12Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Yaml12Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)
_Yaml12Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Yaml12Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def _construct_int(loader: _Yaml12Loader, node: yaml.ScalarNode) -> int:
    # PyYAML's own constructor reads 010 as 8, and fails on 08.
    digits = node.value
    value = None if len(digits) > 100 else int(digits, 0 if digits.startswith(("0o", "0x")) else 10)
    if value is None or abs(value) > LARGEST_INTEGER:
        raise YamlError(
            "evals.yaml_integer_too_large",
            integer=shown(digits),
            line=node.start_mark.line + 1,
            largest=LARGEST_INTEGER,
        )
    return value


_Yaml12Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def parse_yaml(text: str) -> Any:
    """Parse a YAML document or scalar, e.g. the value of `--set key=value`. Raises YamlError."""
    try:
        document = yaml.load(text, Loader=_Yaml12Loader)
    except yaml.YAMLError as error:
        raise YamlError("evals.invalid_yaml", error=" ".join(str(error).split())) from None
    _require_usable(document)
    return document


def _require_usable(document: Any) -> None:
    """Raise YamlError for a document that aliases make too large, or for text that cannot be stored in a file."""
    # Go level by level, visiting no more values than the limit: aliases can make a document exponentially large, or
    # make it contain itself.
    level, n_values = [document], 0
    for _ in range(MOST_DEPTH):
        for text in (one for one in level if isinstance(one, str)):
            if "\0" in text or not _is_unicode(text):
                raise YamlError("evals.text_not_storable", text=shown(text))
        n_values += len(level)
        level = list(islice(chain.from_iterable(map(_parts, level)), MOST_VALUES + 1))
        if not level:
            return
        if n_values + len(level) > MOST_VALUES:
            raise YamlError("evals.too_many_aliased_values", most_values=MOST_VALUES)
    raise YamlError("evals.aliases_nested_too_deep", most_depth=MOST_DEPTH)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | set | tuple):
        yield from value


def _is_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogates."""
    return not re.search(r"[\ud800-\udfff]", text)


def compose_yaml(text: str) -> yaml.Node | None:
    """Parse a document into nodes, accepting tags that other programs define. Raises YamlError."""
    try:
        loader = _Yaml12Loader(text)
        loader.takes_tags = True
        return loader.get_single_node()
    except yaml.YAMLError as error:
        raise YamlError("evals.invalid_yaml", error=" ".join(str(error).split())) from None


def read_text(path: Path) -> str:
    """Return the text of a YAML file.

    Raises YamlError if it cannot be read or is too large, and FileNotFoundError if it does not exist.
    """
    try:
        with path.open("rb") as handle:
            # Reading one byte beyond the limit reveals that a file is too large, without reading all of it.
            content = handle.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise YamlError("evals.file_too_large", most_bytes=MOST_BYTES)
        return content.decode("utf-8")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise YamlError("evals.file_unreadable", reason=error.strerror) from None
    except UnicodeDecodeError as error:
        raise YamlError("evals.file_not_utf8", reason=error.reason, byte=error.start) from None


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises RefusedError, naming file and line, if it cannot be read or is not a mapping.
    """
    try:
        document = parse_yaml(read_text(path))
    except FileNotFoundError as error:
        raise RefusedError("evals.yaml_file_unreadable", path=path, reason=error.strerror) from None
    except YamlError as error:
        raise RefusedError("evals.in_file", path=path, error=error) from None
    if not isinstance(document, dict):
        raise RefusedError("evals.yaml_not_mapping", path=path, given_type=type(document).__name__)
    return document


File = TypeVar("File", bound=Settings)
ENDINGS = (".yaml", ".yml")
"""A name with one of these endings is the path of a file. Other names refer to something shipped or to a plug-in."""


def read_yaml(path: Path, kind: type[File], noun: str, listed: bool = True) -> File:
    """Read the content of a file as settings.

    noun: what the file declares, e.g. "task", for messages.
    listed: True if `bench ls` lists such things by name.

    Raises EvalError if the file is missing, is not YAML, or has invalid keys; then it lists every fault.
    """
    try:
        document = parse_yaml(read_text(path))
    except FileNotFoundError as error:
        by_name = f"its name (`bench ls {noun}s`) or by " if listed else ""
        raise EvalError("evals.yaml_file_missing", kind=noun, path=path, by_name=by_name) from error
    except YamlError as error:
        raise EvalError("evals.in_yaml_file", kind=noun, path=path, error=error) from error
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        faults = "\n".join(f"  {fault.line}" for fault in faults_of(error, kind))
        raise EvalError("evals.faults_in_yaml_file", kind=noun, path=path, faults=faults) from error
