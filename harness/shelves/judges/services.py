"""What judges are lent: a messenger with the replies that a home remembers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from harness.sampling.judge_replies import judges_in
from harness.sampling.services import OnWaiting, Service


def _lend(home: Path, allow_code: bool, on_waiting: OnWaiting) -> AbstractContextManager[None]:
    return judges_in(home, on_waiting)


JUDGES = Service("judges", "asks the models of judges, and remembers their replies", _lend)
