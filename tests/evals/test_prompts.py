from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from evals.contamination import overlap
from evals.errors import EvalError
from evals.grading.extract import extract_answer
from evals.prompts import TEMPLATES, Template, get_template
from evals.tasks.rows import file_rows
from harness import plugins
from harness.errors import UnknownNameError
from tests.refusals import refuses

HOSTILE = "Let $S = \\{1, {2}\\}$. {problem} {0} %s \\boxed{}"
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
MINE = 'text: |-\n  Problem: {problem}\n  Solution:\nstop: ["Problem:"]\n'


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """A template of the user's own. What is read of it is forgotten afterwards."""
    yield tmp_path / "mine.yaml"
    plugins.use([], [])


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("plain", HOSTILE),
        ("question_answer", f"Question: {HOSTILE}\nAnswer:"),
        ("boxed", [{"role": "user", "content": f"{HOSTILE}\n{BOXED}"}]),
        ("qwen_math", [{"role": "system", "content": BOXED}, {"role": "user", "content": HOSTILE}]),
        ("modes_digits", f",{HOSTILE}"),
        ("qwen3", [{"role": "user", "content": f"{HOSTILE}\n{BOXED} /think"}]),
    ],
)
def test_what_is_asked(name, prompt):
    assert get_template(name).render(HOSTILE) == prompt


def test_a_flag_asks_for_the_answer_at_once():
    assert get_template("modes_digits").render("3+5=", "direct") == "#3+5="
    expected = [{"role": "user", "content": f"3+5=\n{BOXED} /no_think"}]
    assert get_template("qwen3").render("3+5=", "direct") == expected
    assert get_template("plain").render("{mode}", "direct") == "{mode}", "without modes it is a text like any other"


@pytest.mark.parametrize(
    ("solution", "parts"),
    [("8,17#17", ("8,17", "17")), ("8#1#2", ("8", "1#2")), ("#17", None), (" #17", None), ("17", None)],
)
def test_a_solution_has_steps_before_the_first_end_of_thinking(solution, parts):
    assert get_template("modes_digits").thinking.parts(solution) == parts


def test_shipped_files_have_the_name_and_the_version_of_their_template():
    files = {path.stem for path in Path(plugins.__file__).parents[2].glob("evals/prompts/*.yaml")}
    assert {name for name, template in TEMPLATES.all().items() if isinstance(template.version, int)} == files


def test_only_worked_examples_need_a_stop_string():
    assert {name: one.stop for name, one in TEMPLATES.all().items() if one.stop} == {"gsm8k_8shot": ("Question:",)}


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"template 'boxd'; did you mean boxed\? `bench ls templates` lists all"):
        get_template("boxd")


def worked_examples() -> list[tuple[str, str]]:
    """(question, answer) of the examples that stand before the problem."""
    *solved, asked = get_template("gsm8k_8shot").text.split("\n\n")
    assert asked == "Question: {problem}\nAnswer:"
    examples = [re.fullmatch(r"Question: (.*)\nAnswer: (.*)", shot, re.DOTALL) for shot in solved]
    return [(example[1], example[2]) for example in examples if example is not None]


def test_worked_examples_are_right():
    """Every sum in them holds, and the last one gives the answer."""
    assert len(worked_examples()) == 8
    for _, answer in worked_examples():
        sums = re.findall(r"([\d +*/-]*\d) = (\d+)", answer)
        for left, right in sums:
            total = Fraction(0)
            for sign, term in re.findall(r"([+-]?) ?(\d+(?: [*/] \d+)*)", left):
                value = Fraction(1)
                for operation, factor in re.findall(r"([*/]?) ?(\d+)", term):
                    value = value / int(factor) if operation == "/" else value * int(factor)
                total += -value if sign == "-" else value
            assert total == int(right), left
        assert extract_answer(answer) == sums[-1][1]


def test_worked_examples_are_in_no_data_set(data_folder):
    """As their file says: no run of 8 words in common with problems that are evaluated or trained on."""
    examples = [(str(number), question) for number, (question, _) in enumerate(worked_examples())]
    for file in ("gsm8k_train", "gsm8k_test", "math500"):
        rows = file_rows(data_folder / f"{file}.jsonl")
        found = overlap(examples, ((where, str(row["problem"])) for where, row in rows))
        assert (found.exact, found.near_copies, found.n_gram) == (0, 0, 0), found.examples


def test_a_file_of_the_users_own(mine):
    mine.write_text(MINE, encoding="utf-8")
    template = get_template(str(mine))
    assert (template.name, template.stop) == ("mine", ("Problem:",))
    assert template.render("1+1?") == "Problem: 1+1?\nSolution:"
    mine.write_text(MINE.replace("Problem", "Exercise"), encoding="utf-8")
    assert get_template(str(mine)) is template, "an edit while a run is under way changes nothing"


def test_it_is_found_beside_the_sweep_file(mine, monkeypatch):
    mine.write_text(MINE, encoding="utf-8")
    with pytest.raises(EvalError, match=r"no template file .*mine\.yaml; .*bench ls templates"):
        get_template("mine.yaml")
    plugins.use([], [mine.parent])
    assert get_template("mine.yaml").text.startswith("Problem:")


def test_it_is_identified_by_its_content(tmp_path):
    def version(content: str, name: str) -> int | str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(content, encoding="utf-8")
        return get_template(str(path)).version

    original = version(MINE, "mine")
    assert version(f"# a comment\nname: other\nversion: 7\nchat: false\n{MINE}", "other") == original
    changed = [
        MINE.replace("Solution", "Answer"),
        MINE.replace("stop: [", 'stop: ["x", '),
        f"{MINE}chat: true\n",
        f"{MINE}chat: true\nsystem: Be brief.\n",
        f"{MINE}thinking: {{end: '#', stop: '#'}}\n",
    ]
    assert len({original, *(version(content, f"changed{number}") for number, content in enumerate(changed))}) == 6


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("txet: '{problem}'\n", r"txet is not a key here; did you mean text\? The keys here are .*text, system, chat"),
        ("chat: true\n", "text has no default: set it"),
        ("text: 'Answer:'\n", r"no \{problem\} in its text"),
        ("text: '{problem}'\nsystem: Be brief.\n", "has a system message, but it is plain text.*set chat to true"),
        ("text: '{problem}'\nstop: 'Question:'\n", r"stop is 'Question:': input should be a list"),
        ("text: '{problem}'\nstop: ['']\n", "give a list of non-empty texts"),
        ("text: '{mode}{problem}'\n", "asks for both modes with ''"),
        ("text: '{problem}'\nthinking: {direct: '/no_think'}\n", r"has flags of modes and no \{mode\}"),
        ("text: '{problem}'\nthinking: {end: '#'}\n", "thinking would go on behind it"),
        ("text: '{problem}'\nthinking: {dirct: x}\n", r"thinking.dirct is not a key here; did you mean direct\?"),
        ("- text\n", "the document is .*: input should be a mapping"),
        ("text: [\n", "is not valid YAML"),
    ],
)
def test_faulty_files(mine, content, says):
    mine.write_text(content, encoding="utf-8")
    with pytest.raises(EvalError, match=rf"(?s)mine.*{says}"):
        get_template(str(mine))


def test_a_template_made_in_python_is_checked_alike():
    with refuses(EvalError, "evals.malformed_template_stop", template="x", stop="Question:"):
        Template("x", version=1, text="{problem}", stop="Question:")  # type: ignore[arg-type]
