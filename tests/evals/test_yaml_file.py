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


def refusal(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(RefusedError) as caught:
        load_yaml(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_repeated_key_is_named_with_its_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, b"train:\n  steps: 3\n  steps: 4\n")
    assert "'steps' is given twice" in message
    assert "line 3" in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"- 1\n- 2\n", "holds list"),
        (b"", "holds NoneType"),
        (b"hello", "holds str"),
        (b"caf\xe9: 1\n", "not UTF-8 text"),
        (b"a: [1\n", "not valid YAML"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
        (b"a: \x00\n", "not valid YAML"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refusal(tmp_path, content)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"none\.yaml: cannot be read: No such file"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(RefusedError, match="cannot be read: Is a directory"):
        load_yaml(tmp_path)


def test_utf_8_is_read_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    path = tmp_path / "a.yaml"
    path.write_bytes("question: größer?\n".encode())
    assert load_yaml(path) == {"question": "größer?"}
