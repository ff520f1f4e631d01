"""The Hugging Face hub: rows of its data sets, and what is done without a network."""

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
"""A row of a data set, as it is read."""


def hub_rows(name: str, id: str, config: str | None, split: str, revision: str | None) -> Iterator[tuple[str, Row]]:
    """(place, row) of each row of a split on the hub, or of a folder in its layout. name: of the split, in places.

    Raises DataMissingError, with the hub's words alone, if the split cannot be had.
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
    """Where the hub's name cannot be resolved, let its clients take what they have stored and fail at once for the
    rest. Left to themselves they try each file six times, over half a minute, and say so each time."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or _is_found(constants.ENDPOINT):
        yield
        return
    # `datasets` has a copy of the switch, which there is only once it is imported.
    switches: list[Any] = [module for module in (constants, sys.modules.get("datasets.config")) if module is not None]
    for module in switches:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module in switches:
            module.HF_HUB_OFFLINE = False


def _is_found(address: str) -> bool:
    """Whether the host has a name that resolves; behind a proxy that is the proxy's affair."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(address).hostname, None)
    except socket.gaierror:
        return False
    return True
