"""The default trainer: bench itself."""

from __future__ import annotations

from typing import Literal

from harness.config.trainer import Trainer


class BenchTrainer(Trainer):
    """Bench itself trains the cell. Arms share noise, and an interrupted cell resumes bit for bit."""

    type: Literal["bench"] = "bench"
