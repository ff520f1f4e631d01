"""maj@k of the final evaluation, the base model beside it."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.over_k import draw_over_k
from reports.figures.style import Drawing


def draw_maj_at_k(analysis: Analysis) -> Drawing | None:
    return draw_over_k(analysis, "maj", "The chance that a majority vote of k samples of a problem is right.")


MAJ_AT_K = Figure(name="maj_at_k", title="Majority vote of k samples", draw=draw_maj_at_k, group="Result", order=80)
