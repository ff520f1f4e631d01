"""status.json of a cell, or of one of its evaluations: reading it, and telling when it is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

from harness.records.counted import Counted, is_counted, size_shortfall
from harness.records.files import DamagedRecordError, read_object, types_of_fields
from harness.records.rows import CellState, Status
from harness.records.schema import SCHEMA, OtherVersionError, require_schema

_CHECKED_APART = ("state", "schema")


def status_in(folder: Path) -> Status:
    """Return the status in a folder; its state is `damaged` if something is wrong with it."""
    status, fault = checked_status(folder)
    return status if fault is None else {**status, "state": "damaged", "reason": fault}


def checked_status(folder: Path) -> tuple[Status, str | None]:
    """Return the status of a cell or evaluation, and its fault, if any.

    A fault is an invalid status.json, or a file that is smaller than it was when the cell was done. Only sizes are
    compared, because a state is asked for often; `require_whole` reads the files.
    """
    path = folder / "status.json"
    try:
        written: dict[str, Any] = read_object(path) if path.exists() else {"schema": SCHEMA, "state": "pending"}
        require_schema(path, written)
    except (DamagedRecordError, OtherVersionError, OSError) as error:
        return {"state": "damaged"}, str(error)
    kinds = {name: kinds for name, kinds in types_of_fields(Status).items() if name not in _CHECKED_APART}
    wrong = [name for name, kind in kinds.items() if name in written and not isinstance(written[name], kind)]
    if written.get("state") not in get_args(CellState):
        wrong.insert(0, "state")
    if "records" not in wrong and not is_counted(written.get("records", {})):
        wrong.append("records")
    if wrong:
        fault = f"{path}: is damaged (lacks {', '.join(wrong)}, or holds something else there)"
        return {"state": "damaged"}, with_remedy(fault, folder)
    status = cast(Status, written)
    counted: Counted = status.get("records", {}) if status["state"] == "done" else {}
    faults = (size_shortfall(folder / name, there) for name, there in counted.items())
    short = next(filter(None, faults), None)
    return status, None if short is None else with_remedy(short, folder)


def with_remedy(fault: str, folder: Path) -> str:
    """Return the fault with advice on what to do about it."""
    return f"{fault}. Restore it, or move {folder} away and run the sweep again."
