"""The mirror beside a running sweep."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from harness.tracking.client import MirrorError
from harness.tracking.mirror import Mirror

_log = logging.getLogger(__name__)


class MirrorThread:
    """`with MirrorThread(mirror): ...` syncs every `interval_s` seconds and once more at the end.

    A server that is away or slow costs the sweep nothing but the mirror's freshness: one warning says so, each sync is
    a new try, and leaving waits at most `patience_s` for the last one.
    """

    def __init__(self, mirror: Mirror, interval_s: float = 5.0, patience_s: float = 30.0) -> None:
        self._mirror = mirror
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._leaving = threading.Event()
        self._warned = False
        # A daemon: a server that does not answer must not keep the process alive.
        self._thread = threading.Thread(target=self._tail, name="mlflow-mirror", daemon=True)

    def __enter__(self) -> MirrorThread:
        self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            self._warn(
                f"MLflow took more than {self._patience_s:g} s; `bench sync` does the rest. The records are complete."
            )

    def _tail(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._leaving.wait(self._interval_s)
            try:
                self._mirror.sync()
            except MirrorError as error:
                self._warn(str(error))

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(message)
