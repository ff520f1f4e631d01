"""The points of one training run, in the order of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from reports.laws.refusal import FloatArray


@dataclass(frozen=True)
class Run:
    """All [points]: `step`, increasing; `entropy` in nats per token; `reward`, a training reward or a score."""

    step: FloatArray
    entropy: FloatArray
    reward: FloatArray

    def __len__(self) -> int:
        return len(self.step)
