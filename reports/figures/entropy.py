"""Policy entropy over training: over the whole vocabulary where recorded, of the sampled tokens otherwise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.style import Drawing
from reports.figures.training import draw_step_field

if TYPE_CHECKING:
    from reports.measurements import Measurement


def draw_entropy(analysis: Analysis) -> Drawing | None:
    full = draw_step_field(
        analysis,
        "entropy/full",
        "entropy (nats per token)",
        f"Mean entropy of the policy's next-token distribution, over the whole vocabulary{_at_most(analysis)}.",
    )
    return full or draw_step_field(
        analysis,
        "entropy/sampled",
        "sampled entropy (nats per token)",
        "Sampled entropy: mean of -log p of the tokens drawn.",
    )


def _at_most(analysis: Analysis) -> str:
    """A second scale: what the even distribution has. Nothing where records are older than that they say it."""
    cells = [measurement for some in analysis.measurements.values() for measurement in some]
    sizes = sorted({size for cell in cells if (size := _vocabulary_tokens(cell)) is not None})
    return "".join(f"; over {size:,} tokens it is at most ln {size:,} = {math.log(size):.2f}" for size in sizes)


def _vocabulary_tokens(measurement: Measurement) -> int | None:
    model = measurement.cell.provenance.get("model")
    size = model.get("vocabulary_tokens") if isinstance(model, dict) else None
    return size if isinstance(size, int) and size > 0 else None


ENTROPY = Figure(name="entropy", title="Policy entropy", draw=draw_entropy, group="Policy", order=90)
