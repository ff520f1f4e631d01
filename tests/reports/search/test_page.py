from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from reports.samples import write_sweep_samples
from reports.search import write_search_report
from tests.reports.page.browser import measure
from tests.reports.page.invariants import SCRIPT, check_page, check_same_files
from tests.reports.search.studies import KNOBS, LONG_KNOBS, Changes, confirmation, study_document, write_study
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

REASON = f"{SCRIPT} | broke\nin line 2 `code` [a](http://x.org)"
HOSTILE: Changes = {
    3: {"reason": REASON},
    5: {"same_as": 2},
    10: {"reason": f"second {REASON}"},
    12: {"flags": ["nan"]},
}
ONE_KNOB = {"train.learning_rate": KNOBS["train.learning_rate"]}
HOSTILE_KNOB = {'rollout."</b>$x$|': {"kind": "categorical", "choices": [SCRIPT, "a|b"]}}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In runs/<sweep>/report, with the report of the confirmation where it belongs."""
    runs = tmp_path_factory.mktemp("runs")
    document = study_document(
        20, changes=HOSTILE, knobs=KNOBS | HOSTILE_KNOB, question=SCRIPT, confirmation=confirmation(7)
    )
    document["best"], document["front"] = 7, [7]
    # `bench report` writes the page of samples first, which the page links to.
    write_sweep_samples(write_sweep(runs / "records", {"trial": 0.0}, seeds=1), runs / "tune_grpo/report")
    write_search_report(write_study(runs / "tune_grpo", document), runs / "tune_grpo/report")
    (runs / "tune_grpo-confirm/report").mkdir(parents=True)
    (runs / "tune_grpo-confirm/report/index.html").touch()
    return runs / "tune_grpo/report"


@pytest.fixture(scope="module")
def html(page: Path) -> str:
    return (page / "index.html").read_text()


@pytest.fixture(scope="module")
def markdown(page: Path) -> str:
    return (page / "report.md").read_text()


def test_json_holds_every_number(page):
    report = json.loads((page / "report.json").read_text(), parse_constant=pytest.fail)
    assert (report["best"]["number"], report["default"]["number"], len(report["trials"])) == (7, 0, 20)
    assert report["sentence"].split()[:3] == ["tune_grpo:", "trial", "7,"]
    assert report["confirmation"]["shrinkage_pp"] == 3.8
    assert report["trials"][3]["reason"] == REASON


def test_trials_are_a_table_of_what_was_recorded(page):
    rows = list(csv.DictReader((page / "data/trials.csv").open()))
    assert [row["trial"] for row in rows] == [str(number) for number in range(20)]
    assert (rows[3]["reason"], rows[3]["eval.final.arithmetic.pass@1"]) == (REASON, "")
    assert (rows[5]["same_as"], rows[0]["is_default"], rows[12]["flags"]) == ("2", "1", "nan")
    assert float(rows[7]["train.learning_rate"]) > 0


def test_the_reading_order(html):
    """The answer, its confirmation, figures and tables."""
    main = html[html.index("<main") :]
    order: tuple[str, ...] = (
        "best of",
        "fresh seeds",
        "3.8 pp",
        "../../tune_grpo-confirm/report/index.html",
        'id="best"',
        'id="history"',
    )
    order += ('id="importance"', 'id="parallel_coordinates"', 'id="slices"', 'id="intermediate"', 'id="trials"')
    places = [main.index(words) for words in order]
    assert places == sorted(places)


def test_the_warning_stands_where_the_confirmation_would(tmp_path):
    write_search_report(write_study(tmp_path, study_document(20, knobs=ONE_KNOB)), tmp_path / "report")
    content = (tmp_path / "report/index.html").read_text()
    main = content[content.index("<main") :]
    places = [main.index(words) for words in ("13 complete", "biased upwards", "--confirm 6", 'id="best"')]
    assert places == sorted(places)
    assert "-confirm/report" not in content


def test_states_and_reasons_are_in_the_table(html, markdown):
    html = re.sub(' (data-label|class)="[^"]*"', "", html)
    states = dict(re.findall(r'<th scope="row">(\d+)</th><td>([^<]*)</td>', html))
    assert states["7"].endswith(", best") and states["5"].endswith(" 2") and states["6"] == "complete"
    assert "flags: nan" in markdown
    row = r"\| objective\.rule\.clip_high \|.* 0\.2 to 0\.4 \|.* 2 or 4 \|"
    assert re.search(row, markdown)


def test_what_holds_of_every_page_holds_of_it(page, html, markdown):
    check_page(page)
    assert "http" not in html.replace("<wbr>", "").replace("[a](http://x.org)", "")
    escaped = r"\| broke in line 2 \`code\` [a]\(http://x.org)"
    assert escaped in markdown


def test_the_same_record_gives_the_same_bytes(tmp_path):
    study = write_study(tmp_path, study_document(12, objectives=2, knobs=ONE_KNOB))
    for folder in ("a", "b"):
        write_search_report(study, tmp_path / folder)
    check_same_files(tmp_path / "a", tmp_path / "b", least=4 + 3 * 8)


def test_figures_of_an_earlier_report_do_not_stay(tmp_path):
    write_search_report(write_study(tmp_path, study_document(20, knobs=ONE_KNOB)), tmp_path / "report")
    assert len([*(tmp_path / "report/figures").iterdir()]) == 10
    failed: Changes = {number: {"state": "failed", "values": None, "intermediate": []} for number in range(20)}
    write_search_report(write_study(tmp_path, study_document(20, changes=failed)), tmp_path / "report")
    assert list((tmp_path / "report/figures").iterdir()) == []
    content = (tmp_path / "report/index.html").read_text()
    assert 'id="best"' not in content


@pytest.mark.parametrize("default", [{"is_default": False}, {}])
def test_one_trial_has_nothing_to_be_compared_with(tmp_path, default):
    document = study_document(1, changes={0: default}) | {"budget": {"trials": 1, "tokens": None, "hours": None}}
    write_search_report(write_study(tmp_path, document), tmp_path / "report")
    content = (tmp_path / "report/report.md").read_text()
    note = content.partition("## Best setting\n\n")[2].partition("\n")[0]
    assert ("itself" in note) == (default == {}) and "1 trial" in content


def test_nothing_sticks_out_and_axe_finds_no_barrier(chromium, axe, tmp_path):
    changes: Changes = {3: {"reason": 60 * "long_reason_"}}
    study = write_study(tmp_path, study_document(40, knobs=LONG_KNOBS, changes=changes))
    write_search_report(study, tmp_path / "report")
    (layout,) = measure(chromium, tmp_path / "report/index.html", [360], tmp_path, axe)
    assert (layout.width, layout.blocked, layout.loaded) == (360, [], [])
    assert (layout.sticking_out, layout.scroll_width, layout.scrolling) == ([], 360, [])
    assert layout.elements > 800 and layout.violations == []
