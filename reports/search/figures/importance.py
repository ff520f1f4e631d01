"""How much of the variance of an objective each knob accounts for."""

from __future__ import annotations

from harness.records.study import StudyRecord
from reports.figures.style import OKABE_ITO, WIDTH_IN, Drawing
from reports.search.figures import SearchFigure
from reports.search.figures.marks import shortened
from reports.search.knobs import short_knobs
from reports.search.objectives import Objective

BAR_IN, MARGINS_IN = 0.26, 0.75
MAX_CHARACTERS = 40


def draw_importance(study: StudyRecord, objective: Objective) -> Drawing | None:
    """None where importances were refused; the page then says why."""
    from matplotlib.figure import Figure

    found = next((one for one in study.importances if one.metric == objective.metric), None)
    if found is None or not found.shares:
        return None
    labels = short_knobs(study.knobs)
    shares = sorted(found.shares.items(), key=lambda item: (item[1], item[0]))
    figure = Figure(figsize=(WIDTH_IN, MARGINS_IN + BAR_IN * max(2, len(shares))), layout="constrained")
    axes = figure.subplots()
    names = [shortened(labels.get(name, name), MAX_CHARACTERS) for name, _ in shares]
    axes.barh(range(len(shares)), [100 * share for _, share in shares], height=0.62, color=OKABE_ITO[0])
    for place, (_, share) in enumerate(shares):
        axes.annotate(
            f"{100 * share:.1f}%", (100 * share, place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(shares)), names)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.15 * max(100 * share for _, share in shares) or 1.0)
    axes.set_ylim(-0.6, len(shares) - 0.4)
    axes.set_xlabel(f"share of the variance of {objective.name} (%)")
    caption = (
        f"fANOVA's shares of the variance of {objective.words} over the searched ranges, from"
        f" n = {found.n_trials} complete trials: of the knobs by themselves, without their interactions, scaled to sum"
        " to 100%. A small share says that the knob mattered little within its range; with few trials not even that."
    )
    rows: list[dict[str, str | int | float]] = [
        {"knob": name, "metric": objective.metric, "share": share, "n_trials": found.n_trials}
        for name, share in reversed(shares)
    ]
    return Drawing(figure, caption, rows)


IMPORTANCE = SearchFigure(
    name="importance", title="Importance of knobs", draw=draw_importance, each_objective=True, order=30
)
