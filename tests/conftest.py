"""Settings of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.reports.page.browser import find_axe, find_chromium

# As every worker: sums over two threads round differently from sums over one, and on a busy machine threads of torch
# spend most of their time waiting for each other. It is read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says something of the machine, which others use too, not of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell that runs the tests in the background makes them, and every process they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A ledger of trusted code for the tests alone, see `harness.plugins.user_code`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports have no figures: these take seconds, and have tests of their own."""
    monkeypatch.setattr("reports.page.render_figures", lambda analysis: [])


@pytest.fixture
def plain_report(no_figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports have no figures and nothing of shelves, which takes seconds too."""
    monkeypatch.setattr("reports.page.document._of_shelves", lambda analysis: {})


@pytest.fixture(scope="session")
def chromium() -> str:
    found = find_chromium()
    if found is None:
        pytest.skip("no Chromium on this machine: `make chromium` installs it")
    return found


@pytest.fixture(scope="session")
def axe() -> Path:
    found = find_axe()
    if found is None:
        pytest.skip("no axe-core-python: it comes with bench-rl[test]")
    return found
