"""`bench power`: what would settle each contrast, how many seeds an effect needs, and which effect seeds can detect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import print_json, print_table, print_text
from harness.cli.options import HomeOption, JsonOption, TrustOption
from harness.errors import RefusedError
from harness.runs import finished_analysis, finished_verdicts, home_folder
from harness.words import said

MIN_PAIRS_FOR_SD = 2
SMALLEST_PP = 0.001
"""The smallest effect or sd accepted: no evaluation is as fine, and far below it the numbers of seeds overflow."""
INSTEAD = (
    "Assume a spread instead, e.g. --sd 2 --correlation 0.6: the run-to-run sd of an arm in pp, and the correlation of "
    "two arms over seeds."
)


@dataclass(frozen=True)
class PowerRow:
    """A contrast, its power, and what the effect needs; None where the spread is unknown."""

    arm: str
    baseline: str
    n_pairs: int
    """The number of finished pairs; 0 if the spread is assumed."""
    sd_pp: float | None
    """The sd of the paired differences."""
    flagged_seeds: list[int]
    """The seeds of pairs with a flagged cell."""
    sd_unflagged_pp: float | None
    """The sd of the other pairs; None if no seed is flagged or too few are left."""
    sd_upper_pp: float | None
    correlation: float | None
    seeds_needed: int | None
    seeds_needed_upper: int | None
    """With the sd at its 80% upper bound, since the sd of a pilot is more often too low than too high."""
    n_seeds: int
    detectable_pp: float | None


@dataclass(frozen=True)
class PowerDesign:
    """The design of a sweep, and the effect to detect."""

    sweep: str
    baseline: str
    n_seeds: int
    """The seeds of the sweep."""
    alpha: float
    """The level that the contrasts share."""
    n_contrasts: int
    effect_pp: float
    source: str
    unit: str = "seed"
    """What is replicated: a seed, or a problem if one checkpoint is evaluated."""

    @property
    def alpha_each(self) -> float:
        # Bonferroni.
        return self.alpha / self.n_contrasts

    def row(
        self,
        arm: str,
        sd_pp: float,
        correlation: float,
        n_pairs: int = 0,
        flagged_seeds: Sequence[int] = (),
        sd_unflagged_pp: float = math.nan,
    ) -> PowerRow:
        """Compute the row of a contrast."""
        from reports.statistics import MIN_PAIRS, power, sd_upper_bound

        alpha, n = self.alpha_each, n_pairs or self.n_seeds
        known = sd_pp > 0  # False for NaN
        upper = sd_upper_bound(sd_pp, n_pairs) if known and n_pairs else None
        return PowerRow(
            arm=arm,
            baseline=self.baseline,
            n_pairs=n_pairs,
            sd_pp=None if math.isnan(sd_pp) else sd_pp,
            flagged_seeds=list(flagged_seeds),
            sd_unflagged_pp=None if math.isnan(sd_unflagged_pp) or not flagged_seeds else sd_unflagged_pp,
            sd_upper_pp=upper,
            correlation=None if math.isnan(correlation) else correlation,
            seeds_needed=power(sd_pp, effect=self.effect_pp, alpha=alpha).n if known else None,
            seeds_needed_upper=None if upper is None else power(upper, effect=self.effect_pp, alpha=alpha).n,
            n_seeds=n,
            detectable_pp=power(sd_pp, n=n, alpha=alpha).effect if known and n >= MIN_PAIRS else None,
        )


def power(
    sweep: Annotated[str, typer.Argument(help=said("cli.help_power_sweep"))],
    effect: Annotated[
        str | None,
        typer.Option("--effect", metavar="EFFECT", help=said("cli.help_power_effect")),
    ] = None,
    sd: Annotated[
        float | None,
        typer.Option("--sd", metavar="PP", help=said("cli.help_power_sd")),
    ] = None,
    correlation: Annotated[
        float | None,
        typer.Option("--correlation", metavar="R", help=said("cli.help_power_correlation")),
    ] = None,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show what would settle a contrast, and what seeds can detect.

    For each contrast without a verdict, it shows how many more seeds, samples or problems are needed, how long they
    take, and the command. With --effect, it shows how many seeds that effect needs, and which effect your seeds can
    detect. Power is 80%.

    Example: bench power std_norm

    Example: bench power std_norm --effect 2pp
    """
    if effect is None:
        if sd is not None or correlation is not None:
            raise RefusedError("cli.spread_without_effect")
        _next_steps(sweep, home_folder(home), as_json=json)
        return
    effect_pp = _percentage_points(effect)
    if sd is None:
        if correlation is not None:
            raise RefusedError("cli.correlation_without_sd")
        design, rows = _measured(sweep, home_folder(home), effect_pp)
    else:
        design, rows = _assumed(sweep, home_folder(home), effect_pp, sd, correlation or 0.0)
    if not rows:
        raise RefusedError("cli.only_one_arm", sweep=design.sweep)
    if json:
        print_json(_document(design, rows))
    else:
        _print(design, rows)


def _next_steps(given: str, home: Path, *, as_json: bool) -> None:
    """Print what would settle each contrast of a sweep that was run."""
    from reports.page.next_step import what_to_do
    from reports.page.verdict import statements

    analysis, document = finished_verdicts(given, home)
    rows = document.declared
    if as_json:
        keys = ("arm", "baseline", "verdict", "difference_pp", "margin_pp", "note", "next_step")
        contrasts = [{key: row.get(key) for key in keys} for row in (one.as_json() for one in rows)]
        print_json({"sweep": analysis.sweep.name, "contrasts": contrasts})
        return
    for row in rows:
        verdict = row.verdict.replace("_", " ")
        print_text(f"{row.name}: {verdict}. {what_to_do(row, analysis.sweep)}")
    if not rows:
        print_text(statements(document)[0].sentence)


def _percentage_points(given: str) -> float:
    """Parse an effect such as `2pp`; raise RefusedError without the unit or out of range."""
    text = given.strip()
    number = text.removesuffix("pp").strip()
    # Without its unit, 0.02 could mean a fraction or percentage points.
    if number == text:
        raise RefusedError("cli.effect_without_unit", given=given)
    try:
        value = float(number)
    except ValueError:
        raise RefusedError("cli.effect_not_a_number", given=given, text=number) from None
    if not SMALLEST_PP <= value <= 100:
        raise RefusedError("cli.effect_out_of_range", given=given, min_pp=SMALLEST_PP)
    return value


def _measured(given: str, home: Path, effect_pp: float) -> tuple[PowerDesign, list[PowerRow]]:
    """Return the design and its contrasts with the sd of finished pairs; raise RefusedError if there is none."""
    from reports.measure.interactions import declared_contrasts

    try:
        analysis = finished_analysis(given, home)
    except RefusedError as error:
        raise RefusedError("cli.in_pilot_runs", error=error, remedy=INSTEAD) from None
    sweep, contrasts = analysis.sweep, declared_contrasts(analysis.sweep, analysis.measurements)
    if contrasts and all(len(contrast.replicates_pp) < MIN_PAIRS_FOR_SD for contrast in contrasts):
        raise RefusedError("cli.too_few_pairs", sweep=sweep.name, min_pairs=MIN_PAIRS_FOR_SD, remedy=INSTEAD)
    design = PowerDesign(
        sweep.name,
        sweep.baseline,
        len(sweep.seeds),
        sweep.alpha,
        len(contrasts),
        effect_pp,
        "finished cells",
        "seed" if sweep.checkpoint is None else "problem",
    )
    rows = []
    for contrast in contrasts:
        found, unflagged = contrast.comparison, contrast.without_flagged
        rows.append(
            design.row(
                contrast.arm,
                math.nan if found is None else found.sd,
                math.nan if found is None else found.correlation,
                len(contrast.replicates_pp),
                contrast.flagged_seeds,
                math.nan if unflagged is None else unflagged.sd,
            )
        )
    return design, rows


def _assumed(
    given: str, home: Path, effect_pp: float, sd_pp: float, correlation: float
) -> tuple[PowerDesign, list[PowerRow]]:
    """Return the design of a sweep, run or not, and its contrasts with an assumed sd."""
    from harness.plan.sweep_file import load_sweep
    from harness.records import read_sweep
    from reports.measure.interactions import declared_names
    from reports.statistics import difference_sd

    if not SMALLEST_PP <= sd_pp <= 100:
        raise RefusedError("cli.sd_out_of_range", sd_pp=sd_pp, min_pp=SMALLEST_PP)
    if not -1 <= correlation < 1:
        raise RefusedError("cli.correlation_out_of_range", correlation=correlation)
    # A sweep that was run is judged as it ran: the file of that name may have changed since.
    if (home / given / "sweep.json").is_file():
        record = read_sweep(home / given)
        name, arms, baseline, grid = record.name, record.arms, record.baseline, record.grid
        n_seeds, alpha, checkpoint = len(record.seeds), record.alpha, record.checkpoint
    else:
        sweep, _ = load_sweep(given)
        name, arms, grid = sweep.name, [*sweep.all_arms], sweep.all_arms if sweep.grid else {}
        checkpoint = sweep.checkpoint
        baseline = sweep.compare.baseline or arms[0]
        n_seeds, alpha = len(sweep.seed_list), sweep.compare.alpha
    if checkpoint is not None:
        raise RefusedError("cli.sd_without_training", sweep=name)
    # sd * sqrt(2 (1 - correlation)): pairing removes the noise that two arms share over seeds.
    paired_sd = difference_sd(sd_pp, correlation)
    contrasts = declared_names(grid, arms, baseline)
    design = PowerDesign(name, baseline, n_seeds, alpha, len(contrasts), effect_pp, "assumed sd")
    return design, [design.row(one.name, paired_sd * one.sd_ratio, correlation) for one in contrasts]


def _document(design: PowerDesign, rows: Sequence[PowerRow]) -> dict[str, object]:
    """Return the document that --json prints."""
    from reports.statistics import TARGET_POWER

    return {
        "sweep": design.sweep,
        "effect_pp": design.effect_pp,
        "power": TARGET_POWER,
        "alpha": design.alpha,
        "level": 1 - design.alpha_each,
        "from": design.source,
        "unit": design.unit,
        "contrasts": [asdict(row) for row in rows],
    }


def _print(design: PowerDesign, rows: Sequence[PowerRow]) -> None:
    from reports.statistics import TARGET_POWER

    measured, unit = design.source == "finished cells", design.unit
    columns = ["arm", "sd of the difference (pp)", "correlation", f"{unit}s needed"]
    columns += ["with the sd at its 80% upper bound"] if measured else []
    columns += [f"{unit}s now", "detectable with these (pp)"]
    table = [
        [
            row.arm,
            _number(row.sd_pp, "{:.2f}"),
            _number(row.correlation, "{:.2f}"),
            _number(row.seeds_needed, "{}"),
            *([_number(row.seeds_needed_upper, "{}")] if measured else []),
            str(row.n_seeds),
            _number(row.detectable_pp, "{:.1f}"),
        ]
        for row in rows
    ]
    shared = f", alpha {design.alpha:g} shared by {len(rows)} contrasts" if len(rows) > 1 else ""
    print_table(
        f"{design.sweep}: {unit}s to find {design.effect_pp:g} pp against {design.baseline} at {TARGET_POWER:.0%} "
        f"power{shared} (spread from {design.source})",
        columns,
        table,
    )
    for row in rows:
        if row.flagged_seeds:
            seeds, rest = ", ".join(map(str, row.flagged_seeds)), row.sd_unflagged_pp
            without = f"without them it is {rest:.2f} pp" if rest is not None else "too few others are left for one"
            print_text(f"note on {row.arm}: its sd is with the flagged seeds ({seeds}); {without}")
    # The dash in the table needs an explanation only where it occurs.
    if any(row.seeds_needed is None for row in rows):
        print_text(
            f"–: the spread is unknown: fewer than {MIN_PAIRS_FOR_SD} finished pairs, equal differences, or few that "
            "differ by less than one sample changes"
        )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
