"""The verbs that read records use the plug-ins of the recorded sweep, from wherever they are still to be had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import plugins
from tests.harness.cli.conftest import Bench
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "extending" / "figure.py"
FIGURE = Path("runs/mine/report/figures/tokens_per_right_answer.svg")


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    yield
    plugins.use([], [])


@pytest.fixture
def recorded(bench: Bench, tmp_path: Path) -> Path:
    """The folder where the sweep file lay; `bench` has made the folder that holds runs/ the current one."""
    asked: dict[str, Any] = {"file": "sweep.yaml", "profile": "tiny", "folder": str(tmp_path / "theirs")}
    asked |= {"settings": [], "seeds": None, "arms": []}
    plugin = {"name": "figure", "digest": "", "files": ["figure.py"]}
    of_schema_2: dict[str, Any] = {"schema": 2, "kind": "sweep", "asked": asked, "plugins": [plugin]}
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=1, **of_schema_2)
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs"


@pytest.mark.parametrize("folder", ["theirs", ".", "runs/mine/question/code"])
def test_where_a_plug_in_is_found(bench: Bench, recorded: Path, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLE, folder)
    told = bench("report", "mine")
    assert (told.code, told.err) == (0, "writing the report\n")
    assert FIGURE.is_file()


def test_where_the_sweep_file_lay_comes_first(bench: Bench, recorded: Path) -> None:
    shutil.copy(EXAMPLE, recorded)
    Path("figure.py").write_text("raise SystemExit('the wrong one')", encoding="utf-8")
    assert bench("report", "mine").code == 0
    assert FIGURE.is_file()


@pytest.mark.parametrize(
    ("content", "fault"), [(None, "there is no module figure in"), ("import nothing_such", "cannot be imported")]
)
def test_a_report_does_without_a_plug_in_that_is_not_to_be_had(
    bench: Bench, recorded: Path, content: str | None, fault: str
) -> None:
    if content is not None:
        (recorded / "figure.py").write_text(content, encoding="utf-8")
    told = bench("report", "mine")
    assert told.code == 0
    (warning,) = [line for line in told.err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: what needs the plug-in figure is left out: plugins of mine: ")
    assert fault in warning
    assert Path("runs/mine/report/index.html").is_file() and not FIGURE.exists()


@pytest.mark.parametrize("verb", ["power", "verdict"])
def test_what_judges_a_sweep_looks_for_its_plug_ins(bench: Bench, recorded: Path, verb: str) -> None:
    told = bench(verb, "mine")
    assert told.code == 0 and "warning: what needs the plug-in figure is left out" in told.err
    assert "One arm, base: nothing to compare." in told.out


def test_the_sweep_file_need_not_be_valid_any_more(bench: Bench, recorded: Path) -> None:
    Path("mine.yaml").write_text("name: mine\nplugins: [gone]\nnonsense: 1\n", encoding="utf-8")
    assert bench("status", "mine.yaml").code == 0


def test_an_evaluation_knows_a_module_that_is_named(bench: Bench) -> None:
    shutil.copy(EXAMPLE.parent / "grader.py", ".")
    words = ("eval", "builtin:tiny", "--tasks", "nothing_such", "--plugin", "grader")
    assert "unknown task 'nothing_such'" in bench(*words).err
    assert plugins.in_use()[0].name == "grader"
    refused = bench("eval", "builtin:tiny", "--tasks", "arithmetic", "--plugin", "nothing_such")
    assert (refused.code, "--plugin: there is no module nothing_such" in refused.err) == (2, True)
