"""Services that graders use while they grade: a model that is asked, a place where programs run.

They are lent to all threads of a process for as long as it samples and grades.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BenchError
from harness.plugins import Kind

OnWaiting = Callable[[str, bool], None]
"""Called every few seconds while a service keeps us waiting: with a sentence on the wait, and whether its server is
away (else it is still working)."""


class ServerAwayError(BenchError):
    """A server did not answer within the caller's patience. Its earlier replies are kept."""


@dataclass(frozen=True)
class Service:
    """lend: (home, whether programs of a model may run, whom to tell of waiting) -> a block in which it is lent."""

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
    """Lend graders every service, with what this home remembers, until the block ends."""
    with ExitStack() as stack:
        for service in SERVICES.all().values():
            stack.enter_context(service.lend(home, allow_code, on_waiting))
        yield
