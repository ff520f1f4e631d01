"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says something of the machine, which others use too, not of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

SLOWEST_FILES = ("tests/test_real_input.py", "tests/harness/search/test_processes.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slowest files first, so that with two processes neither is left alone with one at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(SLOWEST_FILES))
