"""pass@k of the final evaluation, the base model beside it."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.over_k import draw_over_k
from reports.figures.style import Drawing


def draw_pass_at_k(analysis: Analysis) -> Drawing | None:
    return draw_over_k(analysis, "pass", "The chance that at least one of k samples of a problem is right.")


PASS_AT_K = Figure(name="pass_at_k", title="pass@k", draw=draw_pass_at_k, group="Result", order=70)
