"""Services that graders use, such as a model that judges or a runner of programs.

All threads of a process can use them while it samples and grades.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BenchError
from harness.plugins import Kind

OnWaiting = Callable[[str, bool], None]
"""on_waiting(sentence, is_away) is called every few seconds while a service makes us wait. is_away is True if the
service's server does not answer, and False if it is still working."""


class ServerAwayError(BenchError):
    """A server did not answer in time. Its earlier replies are kept."""


@dataclass(frozen=True)
class Service:
    """A service of graders. `lend(home, allow_code, on_waiting)` returns a context manager that makes it available.

    allow_code: whether programs that a model wrote may run.
    """

    name: str
    summary: str
    lend: Callable[[Path, bool, OnWaiting], AbstractContextManager[None]]


SERVICES: Kind[Service] = Kind(
    "service of graders", lambda thing: isinstance(thing, Service), __name__, "bench ls services"
)


@contextmanager
def services_in(
    home: Path, allow_code: bool = False, on_waiting: OnWaiting = lambda sentence, is_away: None
) -> Iterator[None]:
    """Make all services available to graders inside this context, with the results that this home has cached."""
    with ExitStack() as stack:
        for service in SERVICES.all().values():
            stack.enter_context(service.lend(home, allow_code, on_waiting))
        yield
