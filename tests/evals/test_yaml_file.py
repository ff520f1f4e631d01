from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evals.yaml_file import YamlError, load_yaml, parse_yaml
from harness.errors import RefusedError
from tests.refusals import refuses


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),
        ("08", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        # Other types under YAML 1.1, strings under 1.2.
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("'3'", "3"),
        ("[1, no, 1e-1]", [1, "no", 0.1]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_python_objects_are_not_made() -> None:
    with refuses(YamlError, "evals.yaml_tag_not_allowed"):
        parse_yaml("!!python/object/apply:os.getcwd []")


@pytest.mark.parametrize(
    ("content", "code", "fields"),
    [
        (b"- 1\n- 2\n", "yaml_not_mapping", {"path": "a.yaml", "given_type": "list"}),
        (b"", "yaml_not_mapping", {"path": "a.yaml", "given_type": "NoneType"}),
        (b"hello", "yaml_not_mapping", {"path": "a.yaml", "given_type": "str"}),
        (b"caf\xe9: 1\n", "file_not_utf8", {"byte": 3}),
        (b"a: [1\n", "invalid_yaml", {}),
        (b"a: 1\n---\nb: 2\n", "invalid_yaml", {}),
        (b"a: \x00\n", "invalid_yaml", {}),
    ],
)
def test_an_unusable_file_is_refused(tmp_path: Path, content: bytes, code: str, fields: dict[str, Any]) -> None:
    (path := tmp_path / "a.yaml").write_bytes(content)
    with refuses(RefusedError, f"evals.{code}", **fields) as refused:
        load_yaml(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_repeated_key_is_named_with_its_line() -> None:
    with refuses(YamlError, "evals.invalid_yaml") as refused:
        parse_yaml("train:\n  steps: 3\n  steps: 4\n")
    assert "'steps'" in str(refused.value) and "line 3," in str(refused.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with refuses(RefusedError, "evals.yaml_file_unreadable", path="none.yaml", reason="No such file or directory"):
        load_yaml(tmp_path / "none.yaml")
    with refuses(RefusedError, "evals.file_unreadable", reason="Is a directory"):
        load_yaml(tmp_path)


def test_utf_8_is_read_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    path = tmp_path / "a.yaml"
    path.write_bytes("question: größer?\n".encode())
    assert load_yaml(path) == {"question": "größer?"}
