"""Each raise gives a code of its own room's `words.toml`, with the fields that the words fill in."""

from __future__ import annotations

import ast
import pickle
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import RefusedError, WordedError

ROOT = Path(__file__).parents[1]

PRODUCT = ("algorithms", "evals", "harness", "reports")


def words() -> dict[str, str]:
    """Return the words of all rooms by their codes."""
    found: dict[str, str] = {}
    for package in PRODUCT:
        for path in (ROOT / package).rglob("words.toml"):
            parts = path.parent.relative_to(ROOT).parts
            room = "bench" if parts == ("harness",) else ".".join(parts[parts[0] == "harness" :])
            found |= {f"{room}.{name}": text for name, text in tomllib.loads(path.read_text(encoding="utf-8")).items()}
    return found


def raised() -> Iterator[tuple[Path, str, set[str]]]:
    """Yield the file, the code and the names of the fields of each error that is made."""
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(ast.Name(name) | ast.Attribute(attr=name), [ast.Constant(str(code))], keywords) if (
                        name.endswith("Error") or name == "__init__"
                    ) and (code.count(" ") == 0 and "." in code):
                        yield path, code, {str(one.arg) for one in keywords}


def test_codes_and_fields_are_those_of_the_words() -> None:
    by_code = words()
    made = list(raised())
    for path, code, fields in made:
        place = f"{path.relative_to(ROOT)}: {code}"
        assert code in by_code, place
        in_words = {name for _, name, _, _ in string.Formatter().parse(by_code[code]) if name is not None}
        assert in_words == fields, place
        beside = (
            (ROOT / "harness").joinpath(*code.split(".")[:-1]) if not code.startswith("bench.") else ROOT / "harness"
        )
        rooms = (beside, ROOT.joinpath(*code.split(".")[:-1]))
        assert any(room in path.parents for room in rooms), place
    assert set(by_code) == {code for _, code, _ in made}


def test_an_error_carries_its_code_and_its_fields() -> None:
    error = RefusedError("plan.no_checkpoint_yet", path=Path("cell"))
    assert (error.code, dict(error.fields)) == ("plan.no_checkpoint_yet", {"path": Path("cell")})
    assert str(error).startswith("cell: ")
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.fields, str(again)) == (error.code, {"path": "cell"}, str(error))


def test_a_sentence_of_a_users_own_is_taken_as_it_is() -> None:
    error = WordedError("no {prompt} is left. Give more.")
    assert (error.code, str(error)) == ("", "no {prompt} is left. Give more.")


def test_words_that_are_not_there_are_a_fault_of_ours() -> None:
    with pytest.raises(KeyError):
        RefusedError("plan.no_such_words")
