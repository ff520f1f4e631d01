"""Figures of one's own, from a folder outside the package: drawn, listed, written, and gone again."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness import plugins
from harness.cli.look import ls
from harness.errors import RefusedError
from reports.figures import FIGURES, Figure, in_reading_order
from reports.page import write_report
from reports.processes import each_in_processes
from reports.search import write_search_report
from tests.refusals import refuses
from tests.reports.search.studies import study_document, write_study
from tests.reports.synthetic import STEPS, write_sweep

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "extending" / "figure.py"
NAME = "tokens_per_right_answer"


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    yield
    plugins.use([], [])


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one's own a single shipped figure is drawn: all of them take most of a minute."""
    few = ("learning", NAME, "broken")
    monkeypatch.setattr(
        "reports.figures.in_reading_order", lambda kind: [one for one in in_reading_order(kind) if one.name in few]
    )


def use(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "figure.py").write_text(text, encoding="utf-8")
    plugins.use(["figure"], [folder])


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_example_is_on_the_page_with_its_data_and_leaves_again(
    few_figures: None, tmp_path: Path, processes: int
) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "mine")
    sweep = write_sweep(tmp_path / "sweep", {"base": 0.0, "up": 3.0}, seeds=2)
    out = tmp_path / "report"
    files = [out / "figures" / f"{NAME}.svg", out / "figures" / f"{NAME}.png", out / "data" / f"{NAME}.csv"]

    plugins.use(["figure"], [tmp_path / "mine"])
    source = FIGURES.source(NAME)
    assert source is not None and source.path == tmp_path / "mine" / "figure.py" and source.digest
    assert in_reading_order(FIGURES)[-1].name == NAME
    write_report(sweep, out, processes=processes)
    html, markdown = ((out / name).read_text() for name in ("index.html", "report.md"))
    assert f'<figure id="{NAME}">' in html and f"(figures/{NAME}.png)" in markdown
    with files[-1].open() as file:
        rows = list(csv.DictReader(file))
    first = sweep.cells[0].read_steps()[0]
    assert len(rows) == 4 * STEPS and rows[0]["arm"] == "base"
    assert float(rows[0][NAME]) == pytest.approx(first["len/mean"] / first["reward/correct"])
    assert all(file.stat().st_size for file in files)

    plugins.use([], [])
    assert NAME not in FIGURES.names()
    write_report(sweep, out, processes=processes)
    assert f'id="{NAME}"' not in (out / "index.html").read_text()
    assert not any(file.exists() for file in files)


def is_known(marker: Path, here: int, _: int) -> bool:
    """This process waits until the other one has taken an item."""
    if os.getpid() != here:
        marker.touch()
    until = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return NAME in FIGURES.names()


def test_other_processes_know_it(tmp_path: Path) -> None:
    use(tmp_path / "mine", EXAMPLE.read_text(encoding="utf-8"))
    look = partial(is_known, marker := tmp_path / "taken", os.getpid())
    assert each_in_processes(look, range(4), 2) == [True] * 4 and marker.exists()
    plugins.use([], [])
    marker.unlink()
    assert each_in_processes(look, range(4), 2) == [False] * 4 and marker.exists()


SEARCH_FIGURE = """
from reports.drawing.rendering import Drawing
from reports.drawing.style import new_figure
from reports.search.figures import SearchFigure


def draw(study, objective):
    figure = new_figure(2.0)
    figure.subplots().plot([trial.number for trial in study.trials])
    return Drawing(figure, f"Of {objective.words}.", [{"trial": trial.number} for trial in study.trials])


NUMBERS = SearchFigure(name="numbers", title="Numbers", draw=draw, each_objective=True)
"""


def test_a_figure_of_a_search_is_drawn_for_each_objective(tmp_path: Path) -> None:
    use(tmp_path / "mine", SEARCH_FIGURE)
    write_search_report(write_study(tmp_path / "study", study_document(9, objectives=2)), tmp_path / "report")
    assert {path.name for path in (tmp_path / "report" / "data").glob("numbers*")} == {"numbers.csv", "numbers_2.csv"}
    assert 'id="numbers_2"' in (tmp_path / "report" / "index.html").read_text()


BROKEN = """
from reports.figures import Figure
BROKEN = Figure(name="broken", title="", draw=lambda analysis: analysis.nonsense, group="Records")
"""


def test_what_a_figure_of_ones_own_raises_is_told_as_ones_own_mistake(few_figures: None, tmp_path: Path) -> None:
    use(tmp_path / "mine", BROKEN)
    sweep = write_sweep(tmp_path / "sweep", {"base": 0.0}, seeds=1)
    with refuses(RefusedError, "reports.drawing_refused", path="figure.py", noun="figure", name="broken"):
        write_report(sweep, tmp_path / "report")


@pytest.mark.parametrize(
    ("fields", "code"), [({"name": "My figure"}, "figure_name_malformed"), ({"group": "Fun"}, "figure_group_unknown")]
)
def test_a_figure_needs_a_name_for_its_files_and_a_group(fields: dict[str, Any], code: str) -> None:
    with refuses(ValueError, f"reports.{code}"):
        Figure(**{"name": "mine", "title": "Mine", "draw": lambda analysis: None, "group": "Cost", **fields})


def test_it_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    plugins.use(["figure"], [tmp_path])
    ls("figures", json=True)
    listed = {row["name"]: row["description"] for row in json.loads(capsys.readouterr().out)}
    groups = [listed[name].partition(": ")[0] for name in (NAME, "forest", "slices")]
    assert groups == ["Cost", "Result", "Search"]
