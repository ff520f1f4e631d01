from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from reports.page.templating import TEMPLATES
from reports.samples import write_sweep_samples
from reports.search import write_search_report
from tests.reports.page.browser import measure
from tests.reports.search.studies import KNOBS, LONG_KNOBS, Changes, confirmation, study_document, write_study
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

SCRIPT = "<script>alert(1)</script>"
PAGE_SCRIPT = "<script>\n" + (TEMPLATES / "page.js").read_text(encoding="utf-8")[:200]
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


def test_the_files(page):
    names = {str(path.relative_to(page)) for path in page.rglob("*") if path.suffix != ".js" and path.is_file()}
    figures = {"history", "importance", "parallel_coordinates", "slices", "intermediate"}
    assert names == {
        *("index.html", "report.md", "report.json", "data/trials.csv", "samples.html", "first_samples.html"),
        *(place for name in figures for place in (f"figures/{name}.svg", f"figures/{name}.png", f"data/{name}.csv")),
    }


def test_json_holds_every_number(page):
    report = json.loads((page / "report.json").read_text(), parse_constant=pytest.fail)
    assert (report["best"]["number"], report["default"]["number"], len(report["trials"])) == (7, 0, 20)
    assert report["sentence"].startswith("tune_grpo: trial 7, the best of 13 complete")
    assert report["confirmation"]["shrinkage_pp"] == 3.8
    assert report["trials"][3]["reason"] == REASON


def test_trials_are_a_table_of_what_was_recorded(page):
    rows = list(csv.DictReader((page / "data/trials.csv").open()))
    assert [row["trial"] for row in rows] == [str(number) for number in range(20)]
    assert (rows[3]["reason"], rows[3]["eval.final.arithmetic.pass@1"]) == (REASON, "")
    assert (rows[5]["same_as"], rows[0]["is_default"], rows[12]["flags"]) == ("2", "1", "nan")
    assert float(rows[7]["train.learning_rate"]) > 0


@pytest.mark.parametrize("text", ["html", "markdown"])
def test_the_reading_order(request, text):
    content = request.getfixturevalue(text)
    content = content[content.find("<main") + 1 :].replace("\\", "")
    places = [
        content.index(words)
        for words in (
            "rial 7, the best of 13 complete",
            "With fresh seeds: best is better than default",
            "it shrank by 3.8 pp",
            "As a control, the default",
            "../../tune_grpo-confirm/report/index.html",
            "Best setting against the default",
            "History of the search",
            "Importance of knobs",
            "Settings of all trials",
            "Each knob by itself",
            "Learning curves of trials",
            "All trials",
            "What was searched",
            "Provenance",
        )
    ]
    assert places == sorted(places)


def test_the_warning_stands_where_the_confirmation_would(tmp_path):
    write_search_report(write_study(tmp_path, study_document(20, knobs=ONE_KNOB)), tmp_path / "report")
    content = (tmp_path / "report/index.html").read_text()
    main = content[content.index("<main") :]
    warned, table = main.index("the best of 19 trials is biased upwards"), main.index("Best setting against")
    assert main.index(", the best of 13 complete") < warned < main.index("bench tune tune_grpo --confirm 6") < table
    assert "-confirm/report" not in content


def test_states_and_reasons_are_in_the_table(html, markdown):
    html = re.sub(' (data-label|class)="[^"]*"', "", html)
    assert '<th scope="row">7</th><td>complete, best</td>' in html
    assert '<th scope="row">5</th><td>complete, same setting as 2</td>' in html
    assert "| 12 | complete |" in markdown and "flags: nan |" in markdown
    assert "| objective.rule.clip_high | float | 0.2 to 0.4 | train.updates_per_rollout is 2 or 4 |" in markdown


def test_untrusted_text_is_escaped(html, markdown):
    for text in (html, markdown):
        assert text.lower().count("<script") == text.count(PAGE_SCRIPT)  # ours alone, in the page and not in Markdown
        assert "&lt;script&gt;alert(1)" in text
        assert "</b>" not in text
    assert r"\| broke in line 2 \`code\` [a]\(http://x.org)" in markdown


def test_nothing_is_loaded_from_outside(page, html, markdown):
    assert "http" not in html.replace("<wbr>", "").replace("[a](http://x.org)", "")
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    for reference in re.findall(r'(?:src|href)="([^"]*)"', html):
        if reference.startswith("#"):
            assert f'id="{reference.removeprefix("#")}"' in html, reference
        else:
            assert (page / reference).is_file(), reference
    for image in re.findall(r"!\[[^]]*\]\(([^)]*)\)", markdown):
        assert (page / image).is_file()


def test_ids_are_unique_and_in_the_contents(html):
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"', html[html.index("<ol>") : html.index("</ol>")])
    headings = re.findall(r'<h2 id="([^"]+)"|<figure id="([^"]+)"', html)
    assert [one or other for one, other in headings] == targets


def test_every_markdown_table_is_rectangular(markdown):
    tables = re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE)
    assert len(tables) == 4
    for block in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_the_same_record_gives_the_same_bytes(tmp_path):
    study = write_study(tmp_path, study_document(12, objectives=2, knobs=ONE_KNOB))
    for folder in ("a", "b"):
        write_search_report(study, tmp_path / folder)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 4 + 3 * 8
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_figures_of_an_earlier_report_do_not_stay(tmp_path):
    write_search_report(write_study(tmp_path, study_document(20, knobs=ONE_KNOB)), tmp_path / "report")
    assert len([*(tmp_path / "report/figures").iterdir()]) == 10
    failed: Changes = {number: {"state": "failed", "values": None, "intermediate": []} for number in range(20)}
    write_search_report(write_study(tmp_path, study_document(20, changes=failed)), tmp_path / "report")
    assert list((tmp_path / "report/figures").iterdir()) == []
    content = (tmp_path / "report/index.html").read_text()
    assert "Nothing to pick from: 20 trials: 20 failed." in content
    assert "No importance of knobs: 0 complete trials, 8 are needed." in content
    assert 'id="best"' not in content


@pytest.mark.parametrize(
    ("default", "note"),
    [({"is_default": False}, "The default was not a trial of this search."), ({}, "The best is the default itself.")],
)
def test_one_trial_has_nothing_to_be_compared_with(tmp_path, default, note):
    study = write_study(tmp_path, study_document(1, changes={0: default}))
    write_search_report(study, tmp_path / "report")
    content = (tmp_path / "report/report.md").read_text()
    assert f"## Best setting\n\n{note}\n" in content


def test_a_budget_of_one_trial_is_written_so(tmp_path):
    document = study_document(1)
    document["budget"] = {"trials": 1, "tokens": None, "hours": None}
    write_search_report(write_study(tmp_path, document), tmp_path / "report")
    assert "| budget | 1 trial |" in (tmp_path / "report" / "report.md").read_text()


def test_nothing_sticks_out_and_axe_finds_no_barrier(chromium, axe, tmp_path):
    changes: Changes = {3: {"reason": 60 * "long_reason_"}}
    study = write_study(tmp_path, study_document(40, knobs=LONG_KNOBS, changes=changes))
    write_search_report(study, tmp_path / "report")
    (layout,) = measure(chromium, tmp_path / "report/index.html", [360], tmp_path, axe)
    assert (layout.width, layout.blocked, layout.loaded) == (360, [], [])
    assert (layout.sticking_out, layout.scroll_width, layout.scrolling) == ([], 360, [])
    assert layout.elements > 800 and layout.violations == []
