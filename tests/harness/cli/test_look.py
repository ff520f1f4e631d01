"""What `bench ls` and `bench show` say of everything that a plug-in can add, and of knobs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import plugins
from harness.cli.look import KINDS, WIDTH, _kinds
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.shelves.judges.judge_server import PAIR_JUDGE, write_judge

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "tests" / "examples" / "extending"


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    yield
    plugins.use([], [])


def test_every_kind_of_plug_in_is_listed() -> None:
    declared = {
        name
        for package in ("algorithms", "evals", "harness", "reports")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"^([A-Z_]+)(?:: \S+)? = Kind\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert declared == {place.partition(":")[2] for places in KINDS.values() for place in places}


@pytest.mark.parametrize("word", KINDS)
def test_a_kind_is_listed_by_the_command_that_its_errors_name(bench: Bench, word: str) -> None:
    listed = {row["name"]: row["description"] for row in bench("ls", word, "--json").document}
    for kind in _kinds(word):
        assert kind.listed_by == f"bench ls {word}"
        assert {*kind.names(), *kind.besides} <= set(listed)
    assert all(listed.values()), "each says what it is"


def test_a_word_filters_by_name_and_description(bench: Bench) -> None:
    names = [row["name"] for row in bench("ls", "knobs", "Clip", "--json").document]
    assert "objective.rule.clip_high" in names and "train.steps" not in names
    assert "objective.critic.value_clip" in names
    assert "task.retire_at" in [row["name"] for row in bench("ls", "knobs", "scalerl", "--json").document]
    nothing = bench("ls", "knobs", "frobnicate")
    assert (nothing.code, nothing.out) == (0, "") and "'frobnicate'" in nothing.err


def test_knobs_fit_a_terminal(bench: Bench) -> None:
    lines = bench("ls", "knobs").out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    at = lines.index("objective.rule.clip_high")
    assert lines[at + 1].split() == ["float", "(>", "0);", "default", "0.2"]


def test_a_knob_is_shown_with_where_it_exists(bench: Bench) -> None:
    (knob,) = bench("show", "objective.rule.clip_high", "--json").document
    assert (knob["type"], knob["default"], knob["range"]) == ("float", "0.2", "> 0")
    frozen("cli/show_knob", bench("show", "objective.rule.clip_high").out + bench("show", "train.steps").out)


def test_the_file_of_a_judge_is_checked_and_shown_with_its_defaults(bench: Bench, tmp_path: Path) -> None:
    judge = write_judge(tmp_path, **{**PAIR_JUDGE, "address": "http://localhost:1/v1"})
    shown = bench("show", judge, "--json").document
    assert (shown["judge"], shown["concurrency"], shown["text"]) == (judge, 8, PAIR_JUDGE["text"])
    write_judge(tmp_path, parse="no group", address="http://localhost:1/v1")
    refused = bench("show", judge)
    assert (refused.code, refused.out) == (2, "") and "parse: " in refused.err


def test_a_reward_part_is_shown_with_formula_traps_and_what_others_do(bench: Bench) -> None:
    for name in ("vr_cli", "jepo", "random"):
        (part,) = bench("show", name, "--json").document
        paragraphs = part["about"].splitlines()
        assert any(one.startswith("Traps: ") for one in paragraphs)
        shown = bench("show", name).out
        assert max(map(len, shown.splitlines())) <= WIDTH
        assert "Traps:" in shown


def test_things_that_share_a_name_are_all_shown(bench: Bench) -> None:
    assert [next(iter(one)) for one in bench("show", "math", "--json").document] == ["task", "grader"]


def test_a_module_that_is_named_adds_its_things(bench: Bench, tmp_path: Path) -> None:
    path = shutil.copy(EXAMPLES / "rule.py", tmp_path / "rule.py")
    row = bench("ls", "rules", "spo", "--plugin", "rule", "--json").document[-1]
    assert (row["name"], row["from"]) == ("spo", str(path))
    assert f"(from {path})" in bench("ls", "rules", "--plugin", "rule").out
    moved = ("--set", "objective.rule.type=spo")
    assert bench("show", "grpo", "--plugin", "rule", *moved, "--json").document["knobs"]["rule.type"] == "spo"
    bench("ls", "rules", "--plugin", "nothing_such").refused("plugins.no_module", named_by="--plugin")
