"""The Hugging Face hub: rows of its data sets, and offline use of its clients."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from evals.errors import DataMissingError

Row = Mapping[str, object]
"""A row of a data set, as it was read."""


def hub_rows(name: str, id: str, config: str | None, split: str, revision: str | None) -> Iterator[tuple[str, Row]]:
    """Yield (location, row) for each row of a split on the hub, or of a folder with the hub's layout.

    name: the name of the split in locations.
    Raises DataMissingError, with only the hub's message, if the split is not available.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        with offline_without_network():
            rows = load_dataset(id, config, split=split, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataMissingError(str(error)) from error
    for number, row in enumerate(rows):
        yield f"{name}, row {number}", row


@contextmanager
def offline_without_network() -> Iterator[None]:
    """Set the hub's clients to offline mode if the hub's name cannot be resolved.

    Offline, they use stored files and fail at once for the others. By default they try each file six times, over half a
    minute, and report each attempt.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or _is_found(constants.ENDPOINT):
        yield
        return
    # `datasets` copies the switch when it is imported, so set both.
    switches: list[Any] = [module for module in (constants, sys.modules.get("datasets.config")) if module is not None]
    for module in switches:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module in switches:
            module.HF_HUB_OFFLINE = False


def _is_found(address: str) -> bool:
    """Return whether the host's name resolves. Returns True behind a proxy, which resolves names itself."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(address).hostname, None)
    except socket.gaierror:
        return False
    return True
