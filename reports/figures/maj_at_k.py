"""maj@k of the final evaluation, the base model beside it."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures.over_k import draw_over_k
from reports.figures.style import Drawing

NAME = "maj_at_k"
TITLE = "Majority vote of k samples"


def draw(analysis: Analysis) -> Drawing | None:
    return draw_over_k(analysis, "maj", "The chance that a majority vote of k samples of a problem is right.")
