"""What shows early that training goes wrong: clipping, the way from the start, groups that teach nothing."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.grid import Column, Trace, draw_step_grid
from reports.figures.style import Drawing

COLUMNS = (
    Column(
        "tokens clipped",
        Trace("clip/high_frac_sign_aware", "above, A > 0"),
        Trace("clip/low_frac_sign_aware", "below, A < 0"),
        as_percent=True,
    ),
    Column("KL to the start (nats per token)", Trace("kl/exact_start")),
    Column(
        "groups of a prompt",
        Trace("reward/frac_zero_std", "equal rewards"),
        Trace("reward/frac_all_1", "all right"),
        as_percent=True,
    ),
)


def draw_stability(analysis: Analysis) -> Drawing | None:
    return draw_step_grid(
        analysis,
        COLUMNS,
        "Share of the tokens in the loss on which a bound of the ratio acts; exact KL of the policy to the one that"
        " training started from; share of groups (the completions of one prompt) whose rewards are all equal, which"
        " give no gradient under a baseline of the group, and of those in which every completion is right.",
    )


STABILITY = Figure(
    name="stability", title="Clipping, KL and groups without signal", draw=draw_stability, group="Policy", order=130
)
