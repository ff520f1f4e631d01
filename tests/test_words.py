"""Each raise gives a code of its own room's `words.toml`, with the fields that the words fill in."""

from __future__ import annotations

import ast
import pickle
import shutil
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import words as room_words
from harness.errors import RefusedError, UnknownNameError, WordedError
from harness.settings.faults import Fault, FaultyError

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
                        name.endswith("Error") or name in ("__init__", "said")
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


@pytest.mark.parametrize("sentence", ["no {prompt} is left. Give more.", "config.json", "plan.no_such_words", "no"])
def test_a_sentence_of_a_users_own_is_taken_as_it_is(sentence: str) -> None:
    error = WordedError(sentence)
    assert (error.code, str(error)) == ("", sentence)


def test_a_folder_beside_the_packages_hides_no_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's `models/` in a checkout is no room."""
    (tmp_path / "harness/models").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    shutil.copy(ROOT / "harness/models/words.toml", tmp_path / "harness/models/words.toml")
    monkeypatch.setattr(room_words, "__file__", str(tmp_path / "harness/words.py"))
    room_words.words_of.cache_clear()
    try:
        assert room_words.words_of("models")
    finally:
        room_words.words_of.cache_clear()


@pytest.mark.parametrize(
    "error", [UnknownNameError("arm", "x", ["y"]), FaultyError([Fault("value", "train.steps", "it is not a number.")])]
)
def test_errors_with_parameters_of_their_own_reach_another_process(error: WordedError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (type(error), str(error), error.code)
