from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cli.console import _fitted, print_json, print_table, print_text
from harness.cli.live import duration
from harness.errors import note


def test_a_table_off_a_terminal_is_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", ["arm", "remarks"], [["a", "x" * 300], ["longer", ""]])
    assert capsys.readouterr().out.splitlines() == ["title", "arm     remarks", f"a       {'x' * 300}", "longer"]


NAMES = [f"clip_high=0.{n},temperature={n}" for n in (1, 2)]


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (60, ["arm                          mean, interval     verdict",
              "clip_high=0.1,temperature=1  50.3 [46.6, 54.0]  inconclusive"]),
        (56, ["arm",
              "  mean, interval     verdict",
              "clip_high=0.1,temperature=1",
              "  50.3 [46.6, 54.0]  inconclusive"]),
        (32, ["arm: clip_high=0.1,temperature=1",
              "  mean, interval:",
              "    50.3 [46.6, 54.0]",
              "  verdict: inconclusive"]),
    ],
)  # fmt: skip
def test_a_table_takes_the_form_that_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, lines: list[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [[name, "50.3 [46.6, 54.0]", "", "inconclusive"] for name in NAMES]
    print_table("", ["arm", "mean, interval", "empty", "verdict"], rows)
    assert capsys.readouterr().out.splitlines()[: len(lines)] == lines


cells = st.lists(st.text("abc", min_size=1, max_size=9), max_size=8).map(" ".join)


@settings(max_examples=40)
@given(st.data(), st.integers(24, 60))
def test_a_table_fits_any_terminal_and_loses_no_word(data: st.DataObject, columns: int) -> None:
    width = data.draw(st.integers(1, 6))
    names = st.text("xyz=.", min_size=1, max_size=24)
    heading = data.draw(st.tuples(st.text("xyz=.", min_size=1, max_size=12), *[cells] * width))
    rows = data.draw(st.lists(st.tuples(names, *[cells] * width), min_size=1, max_size=4))
    lines = list(_fitted(list(zip(heading, *rows, strict=True)), columns))
    assert all(len(line) <= columns for line in lines)
    words = " ".join(lines).split()
    assert all(name in words for name, *_ in rows), "a name stays whole"
    assert all(word in words for _, *others in rows for cell in others for word in cell.split())


def test_sentences_are_wrapped_on_a_terminal_and_stay_one_line_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_text("a long sentence", "  - ")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "12")
    print_text("a long sentence", "  - ")
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["sentence", "long", "sentence"]


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
