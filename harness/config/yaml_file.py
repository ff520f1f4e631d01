"""YAML with 1.2 scalars, safely loaded: `1e-4` is a number, `off` and `yes` are strings, a repeated key is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from harness.errors import RefusedError


class _Yaml12Loader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema instead of 1.1's."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                mark = node.value[position][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", mark)
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
    return int(node.value, 0 if node.value.startswith(("0o", "0x")) else 10)


_Yaml12Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. RefusedError, naming file and line, if it cannot be read or is not a mapping."""
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RefusedError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise RefusedError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except yaml.YAMLError as error:
        raise RefusedError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise RefusedError(f"{path}: holds {type(document).__name__}, but must be a mapping of keys to values.")
    return document


def parse_yaml(text: str) -> Any:
    """A YAML document or scalar, e.g. the value of `--set key=value`. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Yaml12Loader)
