"""Pauses of milliseconds between a judge's repetitions."""

from __future__ import annotations

import pytest

from harness.shelves.judges import chat_client


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FIRST_PAUSE", 0.01), ("LONGEST_PAUSE", 0.05), ("_LOOK_EVERY", 0.02), ("_TOLD_EVERY", 0.02)):
        monkeypatch.setattr(chat_client, f"{name}_S", seconds)
