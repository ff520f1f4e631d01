"""The spec under which a recorded cell was run."""

from __future__ import annotations

from harness.errors import RefusedError
from harness.records import CellRecord
from harness.spec.run_spec import RunSpec

_SHOWN = 3


def recorded_spec(cell: CellRecord) -> RunSpec:
    """Raises DamagedRecordError without a spec.json, RefusedError for one whose fields this version does not know."""
    from pydantic import ValidationError

    try:
        return RunSpec.model_validate(cell.spec)
    except ValidationError as error:
        fields = [".".join(map(str, one["loc"])) for one in error.errors()]
        more = f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else ""
        raise RefusedError(
            f"{cell.path / 'spec.json'}: another version of bench wrote it ({', '.join(fields[:_SHOWN])}{more} do not "
            "fit). Use the version that ran its sweep."
        ) from None
