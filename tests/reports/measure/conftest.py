"""Reports of this folder have no figures and shelves: these take most of the time, and have tests of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def measured_alone(plain_report: None) -> None:
    """Let every report of this folder be plain."""
