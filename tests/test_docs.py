"""What the README and the pages of docs/ show must work. That links resolve is checked by `make docs`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from algorithms import presets
from docs import tables
from evals.tasks import get_task
from harness import plugins
from harness.cli.app import app
from harness.plan import make_plan

ROOT = Path(__file__).parents[1]
DEFINITION = "LAB_GRPO = Preset("
PAGES = {
    path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
README = PAGES[ROOT / "README.md"]
MOST_LINES = 150


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language; "" for commands."""
    return [
        code for found, code in re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if found == language
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    plugins.use([], [])


def test_the_readme_is_short_and_its_links_are_there() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert links and [link for link in links if not (ROOT / link).exists()] == []
    assert f"**{len(presets())} algorithms" in README


def test_every_page_is_found_from_the_index_and_once_in_the_menu() -> None:
    docs, index = ROOT / "docs", PAGES[ROOT / "docs" / "index.md"]
    folders = ("howto", "reference", "explanation")
    pages = [page.relative_to(docs).as_posix() for folder in folders for page in (docs / folder).glob("*.md")]
    assert [page for page in pages if f"]({page})" not in index] == []
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in pages if menu.count(f"- {page}\n") != 1] == []


def test_the_questions_of_the_readme_plan_clean(folder: Path) -> None:
    """With the task and the reward that it shows, from a folder outside the package."""
    temperature, brevity, sums = blocks(README, "yaml")
    (reward,) = blocks(README, "python")
    (folder / "temperature.yaml").write_text(temperature, encoding="utf-8")
    (folder / "brevity.yaml").write_text(brevity, encoding="utf-8")
    (folder / "sums.yaml").write_text(sums, encoding="utf-8")
    (folder / "my_reward.py").write_text(reward, encoding="utf-8")
    for name, answer in (("sums.jsonl", 11), ("held_out.jsonl", 12)):
        (folder / name).write_text(json.dumps({"problem": f"4+{answer - 4}=", "answer": str(answer)}) + "\n")
    for name, knob in (("temperature", "rollout.temperature"), ("brevity", "reward.parts.my_reward:brief")):
        plan = make_plan(str(folder / f"{name}.yaml"))
        plan.require_answerable()
        assert plan.gate.differs == [knob]


def test_the_question_and_the_task_of_the_guides_are_accepted(folder: Path) -> None:
    (question,) = blocks(PAGES[ROOT / "docs/tutorial.md"], "yaml")
    (task,) = blocks(PAGES[ROOT / "docs/howto/tasks.md"], "yaml")
    (folder / "question.yaml").write_text(question, encoding="utf-8")
    (folder / "sums.yaml").write_text(task, encoding="utf-8")
    make_plan(str(folder / "question.yaml")).require_answerable()
    assert {*get_task(str(folder / "sums.yaml")).splits} == {"train", "test"}


def commands() -> set[tuple[str, ...]]:
    """Every `bench ...` in a block of commands or in a line of text, as words."""
    shown = [line for page in PAGES.values() for block in blocks(page, "") for line in block.splitlines()]
    shown += [code for page in PAGES.values() for code in re.findall(r"`(bench [^`\n]+)`", page)]
    words = (shlex.split(line, comments=True) for line in shown if line.startswith("bench "))
    return {tuple(command[1:]) for command in words}


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    assert len(commands()) > 40
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for verb, *rest in commands():
        if verb.startswith("--"):
            continue
        assert verb in verbs, (verb, *rest)
        known = {"--help", *(name for parameter in verbs[verb].params for name in parameter.opts)}
        known |= {name for parameter in verbs[verb].params for name in parameter.secondary_opts}
        unknown = {word.partition("=")[0] for word in rest if word.startswith("--")} - known
        assert not unknown, (verb, *rest)


@pytest.mark.slow
def test_commands_that_only_look_work() -> None:
    looks = {
        command for command in commands() if command[0] in ("show", "diff") and command[1:] and "NAME" not in command
    }
    assert len(looks) >= 5
    for command in looks:
        assert CliRunner().invoke(app, [*command]).exit_code == 0, command


def test_every_table_is_on_a_page_and_none_is_empty() -> None:
    asked = {name for page in PAGES.values() for name in re.findall(r"<!-- table: (.+?) -->", page)}
    assert asked == {*tables.TABLES}
    for name in asked:
        assert tables.TABLES[name]().count("\n") >= 3, name


def test_every_example_is_on_the_page_on_extending() -> None:
    page = PAGES[ROOT / "docs/extending.md"]
    examples = {path for path in (ROOT / "tests/examples/extending").iterdir() if path.suffix in (".py", ".yaml")}
    shown = {link["path"] for link in tables.FILE_LINK.finditer(page)}
    assert shown == {str(path.relative_to(ROOT)) for path in examples if path.name != "__init__.py"}
    assert DEFINITION in tables.with_tables(page)


def test_excerpts_below_links_are_those_of_the_files() -> None:
    assert [str(path) for path, page in PAGES.items() if tables.with_excerpts(page) != page] == [], (
        "`python -m docs.tables` writes the excerpts anew"
    )
    (block,) = re.findall(r"preset\.py\)\n\n```python\n(.*?)^```", PAGES[ROOT / "docs/extending.md"], re.DOTALL | re.M)
    assert DEFINITION in block and "import" not in block


def cells_of(markdown: str) -> dict[str, list[str]]:
    return {
        row.split("|")[1].strip(" `"): [cell.strip() for cell in row.split("|")[2:-1]]
        for row in markdown.splitlines()[2:]
    }


def test_tables_of_presets_say_what_sets_them_apart() -> None:
    gradients, pairs = cells_of(tables.policy_gradient_presets()), cells_of(tables.preference_presets())
    assert (tuple(gradients), tuple(pairs)) == (presets("policy_gradient"), presets("preference"))
    for rows in (gradients, pairs):
        assert len({tuple(cells[:-1]) for cells in rows.values()}) == len(rows)
    assert gradients["cispo"][3].endswith("(weight_max 5.0)")
    assert gradients["reinforce_pp_baseline"][5].split(", ")[2:] == ["kl.estimator=k2", "kl.beta=0.001"]
    assert pairs["robust_dpo"][4].split(", ") == ["label_smoothing=0.1", "smoothing=robust"]


def test_the_calibration_has_3_6_10_and_24_seeds_and_the_page_on_statistics_quotes_it() -> None:
    _, *tables_of_calibration = (ROOT / "benchmarks/results/calibration.md").read_text(encoding="utf-8").split("\n## ")
    assert tables_of_calibration
    for table in tables_of_calibration:
        sizes = {int(one or two) for one, two in re.findall(r"\| n = (\d+)(?= \|)|^\| (\d+) \|", table, re.MULTILINE)}
        assert {3, 6, 10, 24} <= sizes, table.splitlines()[0]
    page = PAGES[ROOT / "docs/explanation/statistics.md"]
    rows = [line for line in tables_of_calibration[0].splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == 4 and all(row in page for row in rows)
