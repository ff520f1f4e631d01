"""What a person sees: `bench` on a pseudo-terminal of several widths, and outputs that close or are full."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import write_sweep_file
from tests.harness.run.small import small_spec
from tests.reports.search.studies import study_document, write_study
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

WIDTHS = (60, 80, 100, 140)
CLIP, HEAT = "objective.rule.clip_high", "rollout.temperature"
GRID = {f"clip_high={c}+temperature={t}": {CLIP: c, HEAT: t} for c in (0.2, 0.28) for t in (0.8, 1.2)}
ARMS = list(GRID)
EFFECTS = ("clip_high 0.28 against 0.2", "temperature 1.2 against 0.8", "clip_high 0.28 × temperature 1.2")
CONTRASTS = ("clip_high=0.28", "temperature=1.2", "clip_high=0.28:temperature=1.2")

# What needs a model is stood in for: the table of a search, and that of an evaluation.
DRIVER = """
import fcntl, functools, json, struct, sys, termios
from pathlib import Path
import harness.cli.report, harness.cli.tune, harness.cli.eval_tables
from harness.cli import main
for write in ("write", "write_search"):  # a page is the same whatever the width
    setattr(harness.cli.report, write, functools.cache(getattr(harness.cli.report, write)))
search = Path("runs/search")
standing_in = {
    "tune": lambda: harness.cli.tune._report_search(search, False),
    "eval": lambda: harness.cli.eval_tables.print_evaluations("tiny", [json.loads(Path("scores.json").read_text())]),
}
for columns, words in json.loads(sys.argv[1]):
    if columns:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    print("\\x1eBEGIN", flush=True)
    sys.argv = ["bench", *words]
    try:
        standing_in.get(words[0], main)()
        code = 0
    except SystemExit as left:
        code = left.code
    print("\\x1eEND", code, flush=True)
"""


@dataclass(frozen=True)
class Shown:
    code: int
    raw: str

    @property
    def lines(self) -> list[str]:
        """Without colours, and of a link its text."""
        text = re.sub(r"\x1b\]8;;.*?\x1b\\", "", self.raw)
        return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def on_terminal(folder: Path, asked: Sequence[tuple[int, Sequence[str]]], **environment: str) -> list[Shown]:
    """What `bench` shows on terminals of so many columns, one command after the other."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    plain = {"COLUMNS", "NO_COLOR", "BENCH_HOME", "TERM", "MLFLOW_TRACKING_URI"}
    env = {name: value for name, value in os.environ.items() if name not in plain}
    env |= {"TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[3])} | environment
    command = [sys.executable, "-c", DRIVER, json.dumps(asked)]
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        written = bytearray()
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(ours)
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    found = re.findall(r"\x1eBEGIN\n(.*?)\x1eEND (\d+)", written.decode().replace("\r\n", "\n"), re.DOTALL)
    assert len(found) == len(asked), errors
    return [Shown(int(code), raw) for raw, code in found]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the records of a factorial and of a search, a sweep file, and the scores of an evaluation."""
    folder = tmp_path_factory.mktemp("terminal")
    sweep = write_sweep(folder / "runs" / "grid", dict.fromkeys(ARMS, 0.0), seeds=3, grid=GRID, varied=GRID)
    for cell in sweep.cells:
        spec = small_spec({HEAT: GRID[cell.arm][HEAT]}, cell.seed).model_dump(mode="json")
        (cell.path / "spec.json").write_text(json.dumps(spec))
    study = study_document(12)
    write_study(folder / "runs" / "search", study)
    (folder / "runs" / "search" / "sweep.json").write_text((sweep.path / "sweep.json").read_text())
    base = {"algorithm": "grpo", "train.updates_per_rollout": 2}
    write_sweep_file(
        folder, base=base, arms=None, ablate=None, grid={CLIP: [0.2, 0.28], HEAT: [0.8, 1.2]}, compare=None
    )
    (folder / "scores.json").write_text(json.dumps(SCORES))
    return folder


ERRORS = dict.fromkeys(("pass@1", "avg@n", "pass^1", "maj@1", "maj@8", "cons@n", "pass@8"), 0.03)
SCORES: dict[str, Any] = {
    "task": "arithmetic", "thinking_budget_tokens": None, "n_problems": 200, "n_samples": 8, "path": "samples",
    "metrics": {"pass@1": 0.44, "pass@8": 0.71, "pass^1": 0.44, "maj@1": 0.44, "maj@8": 0.5, "avg@n": 0.44,
                "cons@n": 0.5, "se_problems_pp": 3.0, "se_samples_pp": 1.1, "mean_tokens": 20.0, "truncated_frac": 0.0,
                "unparsed_frac": 0.1, "ungraded_frac": 0.0, "faulty_steps_frac": 0.02},
    "standard_errors": ERRORS, "disagreement": [],
}  # fmt: skip

SHOWN: dict[tuple[str, ...], Sequence[str]] = {
    ("status", "grid"): ARMS,
    ("plan", "mine.yaml"): ARMS,
    ("report", "grid"): [*ARMS, *EFFECTS],
    ("verdict", "grid"): [],
    ("compare", f"grid/{ARMS[1]}", f"grid/{ARMS[0]}"): [f"grid/{ARMS[1]}"],
    ("power", "grid"): [],
    ("power", "grid", "--effect", "2pp"): CONTRASTS,
    ("ls", "knobs", "clip"): [CLIP],
    ("ls", "sweeps"): ["kl_clip_high"],
    ("tune",): ["learning_rate=", "aggregation=constant_length"],
    ("eval",): ["pass@8"],
}
"""What each verb must show whole."""


@pytest.fixture(scope="module")
def shown(home: Path) -> dict[tuple[int, tuple[str, ...]], Shown]:
    asked = [(columns, words) for words in SHOWN for columns in WIDTHS]
    return dict(zip(asked, on_terminal(home, asked), strict=True))


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_everything_fits_and_no_name_is_cut(shown: Any, words: tuple[str, ...], columns: int) -> None:
    found = shown[columns, words]
    assert found.code == 0
    assert "…" not in found.text
    too_wide = [line for line in found.lines if len(line) > columns and not re.match("(report|samples): ", line)]
    assert not too_wide
    missing = [name for name in SHOWN[words] if not any(name in line for line in found.lines)]
    assert not missing, "a name is cut, or broken over lines"


def test_the_verdicts_come_before_what_qualifies_them_and_the_page_last(shown: Any) -> None:
    found = shown[80, ("report", "grid")]
    first = [next(place for place, line in enumerate(found.lines) if text in line) for text in
             ("Main effects", "pass@1 on arithmetic", "averaged over temperature", "Secondary", "  - By temperature",
              "report: ")]  # fmt: skip
    assert first == sorted(first) and first[-1] == len(found.lines) - 1
    assert found.lines[-1] == "report: runs/grid/report/index.html"


def test_a_verdict_has_a_sign_and_a_colour_and_the_page_is_a_link(home: Path, shown: Any) -> None:
    report = shown[80, ("report", "grid")].raw
    for words in (("report", "grid"), ("verdict", "grid"), ("compare", f"grid/{ARMS[1]}", f"grid/{ARMS[0]}")):
        assert re.search(r"^\x1b\[3[1-4]m[▲▼≈=?]\x1b\[0m [a-z]", shown[80, words].raw, re.MULTILINE), words
    address = (home / "runs/grid/report/index.html").resolve().as_uri()
    assert f"\x1b]8;;{address}\x1b\\runs/grid/report/index.html\x1b]8;;\x1b\\" in report
    (plain,) = on_terminal(home, [(80, ["verdict", "grid"])], NO_COLOR="1")
    assert "\x1b" not in plain.raw and re.search("^[▲▼≈=?] ", plain.raw, re.MULTILINE)


def test_off_a_terminal_there_are_no_colours_no_signs_and_no_breaks(bench: Bench, home: Path) -> None:
    result = bench("verdict", "grid", "--home", home / "runs")
    assert "\x1b" not in result.out
    begins = re.compile("Interim|Undecided|clip|temperature|It is inconclusive whether")
    assert all(begins.match(line) for line in result.out.splitlines())


def test_metrics_that_are_one_are_told_once_each_with_its_standard_error(shown: Any) -> None:
    rows = [line.split("  ") for line in shown[140, ("eval",)].lines]
    written = {cell: row[-1].strip() for row in rows for cell in map(str.strip, row) if "@" in cell}
    assert written["pass@1 = pass^1 = maj@1 = avg@n"] == written["maj@8 = cons@n"] == written["pass@8"] == "3.0"


def test_the_page_is_opened_if_asked(bench: Bench, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_one(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", open_one)
    assert bench("report", "grid", "--home", home / "runs", "--open").code == 0
    assert opened == [(home / "runs/grid/report/index.html").resolve().as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert "no browser was found to open" in bench("report", "grid", "--home", home / "runs", "--open").err


BENCH = [sys.executable, "-c", "from harness.cli import main; main()"]
FULL = "error: the disk is full. Once there is room, the same command continues.\n"


@pytest.mark.parametrize(
    ("shell", "code", "says"),
    [
        ('"$@" ls knobs | head -1; exit ${PIPESTATUS[0]}', 141, ""),
        ('"$@" verdict grid | true; exit ${PIPESTATUS[0]}', 141, ""),
        ('"$@" status grid >/dev/full', 1, FULL),
        ('"$@" --help >/dev/full', 1, FULL),
        ('"$@" status grid >&-', 0, ""),
        ('"$@" status nothing 2>/dev/full', 2, ""),
        ('"$@" status nothing 2>&-', 2, ""),
        ('"$@" status nothing 2>&1 >&- | true; exit ${PIPESTATUS[0]}', 2, ""),
    ],
)
def test_an_output_that_is_closed_or_full(home: Path, shell: str, code: int, says: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "BENCH_HOME": "runs"}
    found = subprocess.run(
        ["bash", "-c", shell, "-", *BENCH], cwd=home, env=environment, capture_output=True, text=True
    )
    assert (found.returncode, found.stderr) == (code, says)
