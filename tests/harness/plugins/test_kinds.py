"""Kinds of things: shipped ones are found in their folder, others in plug-ins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import plugins
from harness.errors import RefusedError, UnknownNameError
from harness.plugins import Kind
from tests.refusals import refuses

KIND_PACKAGE = f"{__package__}.shipped"
KIND: Kind[Any] = Kind(
    "knob", lambda thing: hasattr(thing, "is_knob") and hasattr(thing, "name"), KIND_PACKAGE, "bench ls x"
)
MINE = """
class Knob:
    is_knob = True
    def __init__(self, name): self.name = name
here = Knob({name!r})
"""


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    yield
    plugins.use([], [])


def use(folder: Path, **modules: str) -> None:
    for module, name in modules.items():
        (folder / f"{module}.py").write_text(MINE.format(name=name), encoding="utf-8")
    plugins.use(list(modules), [folder])


def test_shipped_things_are_those_of_the_folder() -> None:
    assert KIND.names() == ("loud", "soft")
    assert KIND.source("loud") is None


def test_a_plug_in_adds_its_things_until_others_are_in_use(tmp_path: Path) -> None:
    use(tmp_path, mine="warm")
    assert KIND.names() == ("loud", "soft", "warm")
    source = KIND.source("warm")
    assert source is not None
    assert source.path == tmp_path / "mine.py"
    plugins.use([], [])
    assert KIND.names() == ("loud", "soft")


def test_what_is_derived_is_derived_anew_for_other_plug_ins(tmp_path: Path) -> None:
    @plugins.cached
    def count() -> int:
        return len(KIND.names())

    assert count() == 2
    use(tmp_path, mine="warm")
    assert count() == 3


def test_an_unknown_name_is_told_with_the_nearest_and_the_list() -> None:
    with refuses(
        UnknownNameError,
        "bench.unknown_name",
        noun="knob",
        name="'lout'",
        nearest="; did you mean loud?",
        rest="`bench ls x` lists all.",
    ):
        KIND.find("lout")


@pytest.mark.parametrize(("modules", "whose"), [({"one": "loud"}, "shipped"), ({"one": "a", "two": "a"}, "one.py")])
def test_a_name_is_given_once(modules: dict[str, str], whose: str, tmp_path: Path) -> None:
    use(tmp_path, **modules)
    with refuses(RefusedError, "plugins.name_taken", name=next(iter(modules.values()))) as caught:
        KIND.names()
    assert whose in str(caught.value.fields["whose"])


def test_a_module_that_fails_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("1 / 0", encoding="utf-8")
    with refuses(RefusedError, "plugins.cannot_import", name="mine", error_type="ZeroDivisionError"):
        plugins.use(["mine"], [tmp_path])
    (tmp_path / "mine.py").write_text("raise SystemExit(0)", encoding="utf-8")
    with refuses(RefusedError, "plugins.cannot_import", name="mine"):
        plugins.use(["mine"], [tmp_path])


def test_what_a_module_prints_stands_before_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("print('loaded')", encoding="utf-8")
    plugins.use(["mine"], [tmp_path])
    assert capsys.readouterr() == ("", "loaded\n")


def test_shipped_things_may_be_declared_in_yaml() -> None:
    kind: Kind[Path] = Kind(
        "file", lambda thing: isinstance(thing, Path), KIND_PACKAGE, "bench ls x", lambda path: path.stem, Path
    )
    assert kind.names() == ("quiet",)
    assert kind.source("quiet") is None


def test_a_file_is_looked_for_in_the_current_folder_then_beside_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
    monkeypatch.chdir(here)
    plugins.use([], [beside])
    assert plugins.user_file("mine.yaml") == Path("mine.yaml")
    (beside / "mine.yaml").write_text("", encoding="utf-8")
    assert plugins.user_file("mine.yaml") == beside / "mine.yaml"
    (here / "mine.yaml").write_text("", encoding="utf-8")
    assert plugins.user_file("mine.yaml") == Path("mine.yaml")


def test_an_installed_package_registers_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_knobs.py").write_text(MINE.format(name="theirs"), encoding="utf-8")
    information = tmp_path / "their_knobs-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-knobs\nVersion: 1\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(f"[{plugins.GROUP}]\nknobs = their_knobs\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._registered.cache_clear()
    plugins._forget()
    try:
        assert KIND.names() == ("loud", "soft", "theirs")
        assert [module.name for module in plugins.in_use()] == ["their_knobs"]
    finally:
        monkeypatch.undo()
        plugins._registered.cache_clear()
        plugins._forget()
