"""Policy entropy over training: over the whole vocabulary where recorded, of the sampled tokens otherwise."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures.style import Drawing
from reports.figures.training import draw_step_field

NAME = "entropy"
TITLE = "Policy entropy"


def draw(analysis: Analysis) -> Drawing | None:
    full = draw_step_field(
        analysis,
        "entropy/full",
        "entropy (nats per token)",
        "Mean entropy of the policy's next-token distribution, over the whole vocabulary.",
    )
    return full or draw_step_field(
        analysis,
        "entropy/sampled",
        "sampled entropy (nats per token)",
        "Sampled entropy: mean of -log p of the tokens drawn.",
    )
