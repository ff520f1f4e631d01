"""Where modules of the user's are found, what belongs to them, and that nothing shadows anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import plugins
from harness.errors import RefusedError
from harness.plugins.user_code import find_user_module
from tests.refusals import refuses


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    yield
    plugins.use([], [])


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_the_first_folder_wins_then_the_installed_packages(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", mine="x = 1"), write(tmp_path / "b", mine="x = 2", other="y = 3")
    assert find_user_module("mine", [first, second], "plugins").path == first / "mine.py"
    assert find_user_module("other", [first, second], "plugins").path == second / "other.py"
    assert find_user_module("yaml", [first, second], "plugins").installed


def test_the_closure_holds_what_is_imported_and_nothing_else(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine="import helper\nfrom tools.deep import thing\nimport torch, json\n\ndef f():\n    import late",
        helper="from algorithms import preset",
        late="",
        stray="raise SystemExit",
        tools__deep="from . import beside\nthing = beside.value",
        tools__beside="value = 7",
        reports="raise SystemExit",
    )
    module = find_user_module("mine", [tmp_path], "plugins")
    assert set(module.files) == {"mine", "helper", "late", "tools.deep", "tools.beside"}
    assert module.changed_files() == []
    (tmp_path / "tools" / "beside.py").write_text("value = 8", encoding="utf-8")
    assert module.changed_files() == [tmp_path / "tools" / "beside.py"]
    assert find_user_module("mine", [tmp_path], "plugins").digest != module.digest
    plugins.use(["mine"], [tmp_path])
    assert sys.modules["tools.deep"].thing == 8


def test_what_runs_is_what_was_hashed_not_what_the_file_holds_by_then(tmp_path: Path) -> None:
    write(tmp_path, helper="value = 1", mine="def f():\n    from helper import value\n    return value")
    (source,) = plugins.use(["mine"], [tmp_path])
    (tmp_path / "helper.py").write_text("value = 2", encoding="utf-8")
    assert sys.modules["mine"].f() == 1
    assert source.changed_files() == [tmp_path / "helper.py"]
    plugins.use(["mine"], [tmp_path])  # of the same size, within the same second: its bytecode would pass for the old
    assert sys.modules["mine"].f() == 2


@pytest.mark.parametrize(
    "how", ["from tools import *", "import importlib, tools\nimportlib.import_module('tools.deep')"]
)
def test_a_packages_module_that_no_import_names_cannot_be_imported(tmp_path: Path, how: str) -> None:
    """It would run without being in the digest."""
    write(tmp_path, mine=how, tools__deep="")
    (tmp_path / "tools" / "__init__.py").write_text("__all__ = ['deep']", encoding="utf-8")
    assert "tools.deep" not in find_user_module("mine", [tmp_path], "plugins").files
    with refuses(RefusedError, "plugins.cannot_import", name="mine"):
        plugins.use(["mine"], [tmp_path])


def test_a_closure_that_leaves_can_no_longer_be_imported(tmp_path: Path) -> None:
    plugins.use(["mine"], [write(tmp_path, mine="")])
    plugins.use([], [tmp_path])
    with pytest.raises(ModuleNotFoundError):
        import mine  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("reports", "plugins.module_name_reserved"),
        ("evals.mine", "plugins.module_name_reserved"),
        ("json", "plugins.module_name_reserved"),
        ("not there", "plugins.not_a_module_name"),
        ("absent", "plugins.no_module"),
    ],
)
def test_names_that_cannot_be_are_refused_with_the_setting_that_gave_them(name: str, code: str, tmp_path: Path) -> None:
    write(tmp_path, reports="", json="", evals__mine="")
    with refuses(RefusedError, code, name=name, named_by="reward.parts.x"):
        find_user_module(name, [tmp_path], "reward.parts.x")


def test_a_helper_with_the_name_of_a_loaded_package_is_refused(tmp_path: Path) -> None:
    write(tmp_path, mine="import pydantic", pydantic="")
    with refuses(RefusedError, "plugins.module_name_installed", module="pydantic"):
        find_user_module("mine", [tmp_path], "plugins")


def test_a_module_alone_has_the_digest_of_its_file(tmp_path: Path) -> None:
    """Cells with a reward function were filed under it before closures were hashed."""
    import hashlib

    write(tmp_path, mine="x = 1")
    assert find_user_module("mine", [tmp_path], "p").digest == hashlib.blake2b(b"x = 1", digest_size=20).hexdigest()


def test_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, mine="import helper", helper="def (")
    with refuses(RefusedError, "plugins.not_python", path="helper.py") as caught:
        find_user_module("mine", [tmp_path], "plugins")
    assert "line 1" in str(caught.value)
