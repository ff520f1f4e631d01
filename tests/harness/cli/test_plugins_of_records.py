"""The verbs that read records use the plug-ins of the recorded sweep, but run no code of strangers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import api, plugins
from harness.config.hashing import run_by
from harness.plugins import user_code
from harness.plugins.user_code import UserModule, find_user_module
from harness.records import read_sweep
from harness.shelves.ui.cli import Renewal
from tests.harness.cli.conftest import Bench
from tests.harness.run.small import small_spec
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "extending" / "figure.py"
FIGURE = Path("runs/mine/report/figures/tokens_per_right_answer.svg")
KEPT = Path("runs/mine/question/code")
LEFT_OUT = "what needs the plug-in figure is left out"
RAN = "figure_ran"


@pytest.fixture(autouse=True)
def nothing_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No plug-ins, and a ledger that knows no code."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    plugins.use([], [])
    user_code.trust_all(False)


def record(home: Path, name: str = "figure", source: str | None = None, **others: str) -> UserModule:
    """A run called `mine` whose plug-in, an example that leaves a mark when it is executed, lies beside its records."""
    kept = home / "mine" / "question" / "code"
    kept.mkdir(parents=True)
    path = kept.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((EXAMPLE.read_text() if source is None else source) + leaving_a_mark())
    for other, content in others.items():
        (kept / f"{other}.py").write_text(content)
    module = find_user_module(name, [kept], "test")
    asked: dict[str, Any] = {"file": "sweep.yaml", "profile": "tiny", "folder": str(kept)}
    plugin = {"name": name, "digest": module.digest, "files": [str(file) for file, _ in module.laid_out()]}
    of_today: dict[str, Any] = {"asked": asked, "plugins": [plugin]}
    write_sweep(home / "mine", {"base": 0.0}, seeds=1, **of_today)
    return module


def leaving_a_mark() -> str:
    return f"from pathlib import Path\nPath({str(Path(RAN).absolute())!r}).touch()\n"


VERBS = {
    "verdict": ("verdict", "mine"),
    "verify": ("verify", "mine"),
    "power": ("power", "mine"),
    "compare": ("compare", "mine/base", "mine/base"),
    "export": ("export", "mine"),
    "replay": ("replay", "mine", "--algorithms", "grpo"),
    "clean": ("clean",),
    "eval": ("eval", "CELL"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_stranger_s_code_runs_only_if_it_is_trusted(bench: Bench, tmp_path: Path, verb: str) -> None:
    record(tmp_path / "runs")
    cell = str(read_sweep(tmp_path / "runs" / "mine").cells[0].path)
    words = [cell if word == "CELL" else word for word in VERBS[verb]]
    assert LEFT_OUT in bench(*words).err and not Path(RAN).exists()
    assert LEFT_OUT not in bench(*words, "--trust-code").err and Path(RAN).exists()


def test_the_page_and_its_json_say_what_is_left_out(bench: Bench, tmp_path: Path) -> None:
    record(tmp_path / "runs")
    document = bench("report", "mine", "--json").document
    written = Path("runs/mine/report")
    sentence = document["left_out"][0]["sentence"]
    assert LEFT_OUT in sentence and str(KEPT / "figure.py") in sentence and "--trust-code" in sentence
    assert json.loads((written / "report.json").read_text())["left_out"] == document["left_out"]
    assert LEFT_OUT in (written / "index.html").read_text() and LEFT_OUT in (written / "report.md").read_text()
    assert not FIGURE.exists() and not Path(RAN).exists()
    assert bench("verify", "mine").code == 0, "what is written is what the same records give"
    assert "left_out" not in bench("report", "mine", "--json", "--trust-code").document and FIGURE.is_file()


@pytest.mark.parametrize("trusts_code", [False, True])
def test_a_look_in_the_browser_runs_no_stranger_s_code(bench: Bench, tmp_path: Path, trusts_code: bool) -> None:
    record(tmp_path / "runs")
    renewal = Renewal(tmp_path / "runs", trusts_code)
    renewal._writing.acquire()
    renewal._write("mine")
    assert Path("runs/mine/report/index.html").is_file()
    assert (Path(RAN).exists(), FIGURE.is_file()) == (trusts_code, trusts_code)


def test_python_reads_records_without_running_them(bench: Bench, tmp_path: Path) -> None:
    record(tmp_path / "runs")
    api.load("mine")
    assert not Path(RAN).exists()
    api.load("mine", trust_code=True)
    assert Path(RAN).exists()


def test_code_that_was_run_before_is_used_from_wherever_it_lies(bench: Bench, tmp_path: Path) -> None:
    """In a copied home too: what counts is that it is the same code."""
    module = record(tmp_path / "elsewhere")
    user_code.remember([user_code.of_module(module)])
    shutil.move("elsewhere", "runs")
    assert bench("verdict", "mine").err == "" and Path(RAN).exists()


@pytest.mark.parametrize("changed", ["figure.py", "helper.py"])
def test_code_other_than_what_was_recorded_never_runs(bench: Bench, tmp_path: Path, changed: str) -> None:
    """Nor does other code under a digest that the user trusts."""
    module = record(tmp_path / "runs", source="import helper\n", helper="")
    user_code.remember([user_code.of_module(module)])
    with (KEPT / changed).open("a") as file:
        file.write("1\n")
    told = bench("verdict", "mine", "--trust-code")
    assert (told.code, LEFT_OUT in told.err, "according to the records" in told.err) == (0, True, True)
    assert not Path(RAN).exists()


def test_the_same_file_in_the_current_folder_is_the_user_s_own(bench: Bench, tmp_path: Path) -> None:
    record(tmp_path / "runs")
    shutil.move(KEPT / "figure.py", "figure.py")
    assert bench("verdict", "mine").err == "" and Path(RAN).exists()


def test_a_folder_below_the_current_one_is_not_the_user_s_own(bench: Bench, tmp_path: Path) -> None:
    """Records choose the name of a module, and a dotted one leads below the current folder."""
    (tmp_path / "runs").mkdir()
    record(tmp_path / "runs", "runs.mine.question.figure")
    (Path("runs/mine/question/figure.py")).write_text((KEPT / "runs/mine/question/figure.py").read_text())
    assert "is left out" in bench("verdict", "mine").err and not Path(RAN).exists()


@pytest.mark.parametrize("place", [".", "mine", "mine/question/code"])
def test_a_folder_of_runs_is_not_the_user_s_own(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    record(tmp_path / "runs")
    if place != "mine/question/code":
        shutil.copy(KEPT / "figure.py", tmp_path / "runs" / place)
    monkeypatch.chdir(tmp_path / "runs" / place)
    assert LEFT_OUT in bench("verdict", "mine", "--home", tmp_path / "runs").err
    assert not (tmp_path / RAN).exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_plug_in_that_fails_is_left_out(bench: Bench, tmp_path: Path, is_there: bool) -> None:
    record(tmp_path / "runs", source="import nothing_such\n")
    if not is_there:
        shutil.rmtree(KEPT)
    told = bench("verdict", "mine", "--trust-code")
    assert (told.code, LEFT_OUT in told.err, "nothing_such" in told.err) == (0, True, is_there), told.err


SWEEP = """
name: mine
question: Does it?
profile: tiny
plugins: [figure]
ablate: [rollout.temperature]
base: {algorithm: grpo, "reward.parts.pay:brief": 0.1}
arms: {t10: {}, t12: {rollout.temperature: 1.2}}
seeds: 3
compare: {baseline: t10, metric: eval.final.pass@1, margin_pp: 1.0}
"""


def test_a_question_of_strangers_runs_only_if_its_code_is_trusted(bench: Bench, tmp_path: Path) -> None:
    """`freeze` writes the question and trains nothing."""
    files = {"mine.yaml": SWEEP, "figure.py": leaving_a_mark(), "pay.py": f"{leaving_a_mark()}brief = len\n"}
    for name, content in files.items():
        Path(name).write_text(content)
    assert bench("freeze", "mine.yaml").code == 0
    for name in (*files, RAN):
        Path(name).unlink()
    assert bench("plan", "mine").code == 0 and Path(RAN).exists(), "the user's own, known by the ledger"
    Path(RAN).unlink()
    shutil.rmtree("state")
    for verb in ("plan", "run", "worker"):
        told = bench(verb, "mine")
        told.refused("plugins.not_trusted")
        assert not Path(RAN).exists(), verb
    plugins.use([], [])  # what was run already in this process would not run again
    assert bench("plan", "mine", "--trust-code").code == 0 and Path(RAN).exists()


def test_a_ledger_that_cannot_be_written_fails_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file where the folder would be")
    user_code.remember(["code"])
    assert not user_code.is_known("code")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    user_code.remember(["code"])
    assert not user_code.is_known("code") and not Path("relative").exists()


def test_the_sweep_file_need_not_be_valid_any_more(bench: Bench, tmp_path: Path) -> None:
    record(tmp_path / "runs")
    Path("mine.yaml").write_text("name: mine\nplugins: [gone]\nnonsense: 1\n", encoding="utf-8")
    assert bench("status", "mine.yaml").code == 0


def test_an_evaluation_knows_a_module_that_is_named(bench: Bench) -> None:
    shutil.copy(EXAMPLE.parent / "grader.py", ".")
    words = ("eval", "builtin:tiny", "--tasks", "nothing_such", "--plugin", "grader")
    bench(*words).refused("bench.unknown_name", noun="task", name="'nothing_such'")
    assert plugins.in_use()[0].name == "grader"
    bench("eval", "builtin:tiny", "--tasks", "arithmetic", "--plugin", "nothing_such").refused("plugins.no_module")


def test_a_report_is_not_written_through_a_link(bench: Bench, tmp_path: Path) -> None:
    record(tmp_path / "runs")
    (tmp_path / "own").mkdir()
    Path("runs/mine/report").symlink_to(tmp_path / "own")
    Path("runs/mine/export").symlink_to(tmp_path / "own")
    for verb in ("report", "export"):
        bench(verb, "mine").refused("records.link_outside_folder")
    assert list((tmp_path / "own").iterdir()) == []


def test_a_judge_is_known_by_where_it_sends_a_key(tmp_path: Path) -> None:
    """No hash of a cell covers that."""
    seen: set[str] = set()
    for port in (1, 2):
        judge = {"address": f"http://127.0.0.1:{port}/v1", "model": "m", "text": "{problem} {completion} {answer}"}
        judge |= {"parse": "(yes|no)", "right": ["yes"], "wrong": ["no"]}  # type: ignore[dict-item]
        (tmp_path / f"{port}.yaml").write_text(json.dumps(judge))
        spec = small_spec({"eval.grader": str(tmp_path / f"{port}.yaml"), "model.trust_remote_code": True})
        seen |= {*run_by(spec)}
    assert sorted(one.partition(" ")[0] for one in seen) == ["judge", "judge", "model"]
