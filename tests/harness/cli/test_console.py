from __future__ import annotations

import json
import re

import pytest

from harness.cli.console import note, print_json, print_table, print_text
from harness.cli.live import duration


def test_a_table_off_a_terminal_is_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", ["arm", "remarks"], [["a", "x" * 300], ["longer", ""]])
    assert capsys.readouterr().out.splitlines() == ["title", "arm     remarks", f"a       {'x' * 300}", "longer"]


def test_a_table_on_a_narrow_terminal_folds_names_and_cuts_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    print_table("", ["arm", "verdict"], [[f"clip_high=0.{n},temperature={n}", "inconclusive"] for n in (1, 2)])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= 40
    assert "…" not in out
    assert out.count("inconclusive") == 2  # only names are broken
    letters = "".join(line.removesuffix("inconclusive ").strip() for line in out.splitlines()[1:])
    assert letters == "clip_high=0.1,temperature=1clip_high=0.2,temperature=2"


def test_sentences_are_wrapped_on_a_terminal_and_stay_one_line_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_text("a long sentence", "  - ")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "12")
    print_text("a long sentence", "  - ")
    assert capsys.readouterr().out.splitlines() == ["  - a long sentence", "  - a long", "    sentence"]


def test_json_is_one_strict_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"question": "größer?"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"question": "größer?"}
    assert "größer" in out
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"x": float("nan")})


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    note("hello")
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (75, "1m15s"), (3600, "1h00m"), (7384, "2h03m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
