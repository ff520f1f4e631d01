"""The default trainer: bench itself."""

from __future__ import annotations

from typing import Literal

from harness.config.trainer import Trainer


class BenchTrainer(Trainer):
    """Bench itself trains: the algorithm, with noise that arms share, resumed bit for bit."""

    type: Literal["bench"] = "bench"
