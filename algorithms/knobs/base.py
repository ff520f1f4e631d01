"""What all groups of knobs share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Knobs(BaseModel):
    """Frozen and strict: an unknown knob is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
