from __future__ import annotations

import json

import pytest

from harness.cli.console import note, print_json, print_table
from harness.cli.live import duration


def test_a_table_off_a_terminal_is_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", ["arm", "remarks"], [["a", "x" * 300], ["longer", ""]])
    assert capsys.readouterr().out.splitlines() == ["title", "arm     remarks", f"a       {'x' * 300}", "longer"]


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
