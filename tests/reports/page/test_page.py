from __future__ import annotations

import json
import re
import subprocess
import sys

import pyarrow.parquet
import pytest

from harness import plugins
from reports.page import templating, write_report
from reports.report import SECTIONS
from reports.samples import write_sweep_samples
from tests.reports.page.invariants import SCRIPT, check_page, check_same_files, only_figures
from tests.reports.rewriting import write_steps
from tests.reports.synthetic import STEPS, Changes, write_sweep

ARMS = {"base": 0.0, "up": 3.0, "<script>alert(2)<": 0.0}
SHOWN = ["forest", "learning", "length", "overoptimisation"]
CONTRAST_KEYS = {
    *("arm", "baseline", "metric", "difference_pp", "low_pp", "high_pp", "p", "p_holm", "p_sign_flip"),
    *("verdict", "n_pairs", "correlation", "detectable_pp"),
}


@pytest.fixture(scope="module", autouse=True)
def few_figures():
    with only_figures(*SHOWN):
        yield


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, few_figures):
    changes: Changes = {("up", 0): {"flags": ["nan"]}, ("up", 1): {"state": "failed", "reason": f"{SCRIPT} | broke"}}
    return write_sweep(
        tmp_path_factory.mktemp("sweep") / "records",
        ARMS,
        seeds=4,
        changes=changes,
        texts=[SCRIPT, "#### 3"],
        other_tasks=["gsm8k", "aime24", "think4:arithmetic", "think8:arithmetic"],
        question=SCRIPT,
    )


@pytest.fixture(scope="module")
def page(sweep):
    folder = sweep.path.with_name("report")
    write_report(sweep, folder)
    write_sweep_samples(sweep, folder)
    return folder


@pytest.mark.slow
def test_the_files(page):
    names = {str(path.relative_to(page)) for path in page.rglob("*") if path.is_file()}
    assert {"index.html", "report.md", "report.json", "data/final_scores.csv"} <= names
    for figure in SHOWN:
        assert {f"figures/{figure}.svg", f"figures/{figure}.png", f"data/{figure}.csv"} <= names


def test_the_answer_leads_in_all_files(page):
    (row,) = json.loads((page / "report.json").read_text())["headline"]
    assert f"**{row['sentence'].replace('<', '&lt;').replace('>', '&gt;')}**" in (page / "report.md").read_text()
    html = (page / "index.html").read_text()
    results, forest, checks, verdicts, setup = (
        html.index(one) for one in ('id="results"', 'id="forest"', 'id="checks"', 'class="verdicts"', 'id="setup"')
    )
    assert results < min(forest, checks) and max(forest, checks) < verdicts < setup
    assert any("Graders" in said for said in re.findall(r'<a href="#checks">⚠ ([^<]*)', html))


def test_json_has_the_keys_of_the_contract_and_no_nan(page):
    text = (page / "report.json").read_text()
    report = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in report.json"))
    assert tuple(report) == SECTIONS
    assert all(set(contrast) >= CONTRAST_KEYS for contrast in report["contrasts"])
    assert [contrast["arm"] for contrast in report["contrasts"]] == list(ARMS)[1:]
    assert len(report["cells"]) == 12
    assert all((cell["score_pp"] is None) == (cell["state"] == "failed") for cell in report["cells"])


def test_flips_are_in_the_report_and_on_the_page(page):
    flips = json.loads((page / "report.json").read_text())["flips"]
    assert [(flip["arm"], flip["problem_id"], flip["difference_pp"]) for flip in flips] == [("up", "p1", 50.0)]
    html = (page / "index.html").read_text()
    link = '<a href="samples.html#arm=up&amp;step=final&amp;task=arithmetic&amp;problem=p1">problem p1</a>'
    (shares,) = re.findall(rf"up, {re.escape(link)}: (\d+)% .* base, (\d+)% .* up ", html)
    assert shares == ("0", "50")


def test_big_tables_are_parquet(page):
    problems = pyarrow.parquet.read_table(page / "data/problems.parquet")
    assert problems.num_rows == 11 * 2  # cells that are done, problems
    steps = pyarrow.parquet.read_table(page / "data/steps.parquet")
    assert steps.num_rows == 11 * STEPS
    assert {"arm", "seed", "step", "entropy/full", "len/correct"} <= set(steps.column_names)
    assert steps["len/correct"].null_count == 11


def test_what_holds_of_every_page_holds_of_it(page):
    check_page(page)
    html = (page / "index.html").read_text()
    assert "http" not in html and "&lt;script&gt;alert(2)" in html
    assert set(re.findall(r'\bid="([^"]+)"', html)) >= {*SHOWN, "verdict", "results", "flips", "troubled"}
    assert r"\| broke" in (page / "report.md").read_text()


def test_failed_and_flagged_cells_are_listed(page):
    html = re.sub("</?abbr[^>]*>", "", (page / "index.html").read_text())
    counts = re.findall(r"(\d+) of (\d+) .*?(\d+) failed, (\d+) flagged", html)
    assert {*counts} == {("11", "12", "1", "1")}
    flagged, failed = re.findall(r"flagged seeds \(([\d, ]+)\)", html), re.findall(r"Seed (\d+) .*?(\w+) failed", html)
    assert "0" in flagged and ("1", "up") in failed


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(sweep, page, tmp_path):
    """Every figure: see the test of two processes."""
    write_report(sweep, tmp_path)
    check_same_files(tmp_path, page, least=4 * 3)


@pytest.mark.slow
def test_a_figure_of_an_earlier_report_does_not_stay(tmp_path):
    sweep = write_sweep(tmp_path / "records", {"base": 0.0}, seeds=1)
    write_report(sweep, tmp_path / "report")
    assert (tmp_path / "report/figures/length.png").exists()
    write_steps(sweep.cells[0], [])
    write_report(sweep, tmp_path / "report")
    assert not (tmp_path / "report/figures/length.png").exists()


@pytest.mark.slow
def test_import_is_light():
    heavy = ("torch", "mlflow", "matplotlib", "scipy", "pyarrow", "jinja2")
    code = f"import sys, reports, reports.statistics, reports.page; print([m for m in {heavy} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


@pytest.mark.slow
def test_control_characters_of_a_model_are_replaced(plain_report, tmp_path):
    mark = "\N{REPLACEMENT CHARACTER}"
    codes = (*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    controls = "".join(chr(code) for code in codes if chr(code) not in "\t\n\r")
    sweep = write_sweep(
        tmp_path / "records",
        {"base": 0.0, "up": 3.0},
        seeds=2,
        texts=["1\0+\t2\n=\x7f3 #### 3", f"5 {controls} #### 5"],
        question="Is \x1b[31mred\0 better?",
        warnings=["a \x7fwarning", "the other \u202eyaw"],
    )
    write_report(sweep, tmp_path / "report")
    html, markdown = ((tmp_path / "report" / name).read_text() for name in ("index.html", "report.md"))
    for text in (html, markdown):
        assert not set(text) & set(controls)
        assert f"Is {mark}[31mred{mark} better?" in text
        assert f"a {mark}warning" in text
        assert f"the other {mark}yaw" in text
    write_sweep_samples(sweep, tmp_path / "report")
    samples = (tmp_path / "report" / "samples.html").read_text()
    assert not set(samples) & set(controls)
    first = f"1{mark}+\t2\n={mark}3 #### 3"
    assert first in samples


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ text }}", "&lt;a&gt;\ufffd\t\n"),
        ("{{ text | upper }}", "&lt;A&gt;\ufffd\t\n"),
        ("{{ text | safe }}", "<a>\ufffd\t\n"),
        ("{{ text | markdown }}", "&lt;a&gt;\ufffd"),
        ("{{ ['a_\x1b', 'b'] | map('breakable') | join(', ') }}", "a_<wbr>\ufffd, b"),
        ("{% macro it(x) %}{{ x }}{% endmacro %}{{ it(text) }}", "&lt;a&gt;\ufffd\t\n"),
        ("{% set x = text | safe %}{{ x }}", "<a>\ufffd\t\n"),
        ("{{ ['<', text] | join }}", "&lt;&lt;a&gt;\ufffd\t\n"),
    ],
)
def test_every_way_into_a_template_replaces_them(tmp_path, monkeypatch, template, expected):
    monkeypatch.setattr(templating, "TEMPLATES", tmp_path)
    (tmp_path / "one.j2").write_text(template)
    assert templating.render_html("one.j2", {"text": "<a>\x1b\t\n"}) == expected


def test_intervals_have_their_level_in_the_head_of_the_column(page):
    for block in re.findall(r"(?:^\|.*\n)+", (page / "report.md").read_text(), flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.split(" | ")] for line in block.splitlines())
        for row in rows:
            for column, cell in zip(head, row, strict=False):
                if re.match(r"\S*\s?\[[-+<]?[0-9.]+, ", cell):
                    assert "%" in f"{column} {cell}", (column, cell)


@pytest.mark.slow
def test_a_plugin_that_was_left_out_is_named_once(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "left_out", lambda: ["It was left out."])
    write_report(sweep, tmp_path)
    for name in ("index.html", "report.md"):
        assert (tmp_path / name).read_text().count("It was left out.") == 1
