"""The records of a run in Python and notebooks, whether `bench run` made them or `bench import`.

    from harness.api import load
    run = load("std_norm")
    run.scores.to_pandas()
    run.compare("no_std", "group_std")["verdict"]
    run.figure("learning")

Tables are Arrow's. Scores and samples have the columns that `bench import` reads. Whoever looks at `contrasts` has
looked at the verdicts: it counts as a look, as `bench verdict` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.options import home_folder, require_any_done, run_folder
from harness.errors import RefusedError, UnknownNameError

if TYPE_CHECKING:
    import pyarrow

    from harness.records import SweepRecord
    from reports.measure import Analysis

TABLES = ("scores", "steps", "samples", "contrasts")
"""The tables of a run, as attributes of `Results` and as files of `bench export`."""

_IMPORTED_AS = {"problem_id": "problem", "n_tokens": "tokens"}
"""Columns of evals.parquet -> what `bench import` calls them."""


@dataclass(frozen=True)
class FigureView:
    """A figure of the report, which a notebook shows. csv: the numbers in it."""

    title: str
    caption: str
    svg: str
    csv: str

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True)
class Results:
    """The finished cells of a run."""

    sweep: SweepRecord

    @cached_property
    def scores(self) -> pyarrow.Table:
        """A row for each number of each evaluation: arm, seed, task, metric, value, step, and whether it is `final`."""
        import pyarrow

        rows = [
            {
                **{"arm": m.cell.arm, "seed": m.cell.seed, "task": row["task"], "metric": name, "value": value},
                **{"step": row["step"], "final": row["final"]},
            }
            for cells in self._analysis.measurements.values()
            for m in cells
            for row in m.scores
            for name, value in row["metrics"].items()
            if value is not None
        ]
        return pyarrow.Table.from_pylist(rows)

    @cached_property
    def steps(self) -> pyarrow.Table:
        """A row for each step of training: arm, seed, and the columns of steps.jsonl."""
        import pyarrow

        from reports.page.document import step_columns

        return pyarrow.table(step_columns(self._analysis))

    @cached_property
    def samples(self) -> pyarrow.Table:
        """A row for each graded sample: arm, seed, task, problem, sample, correct, step, tokens, text and more, as far
        as the cells recorded them. No rows if they kept none."""
        import pyarrow

        tables = []
        for cell in (m.cell for cells in self._analysis.measurements.values() for m in cells):
            table = cell.read_evals()
            if table is None:
                continue
            table = table.rename_columns([_IMPORTED_AS.get(name, name) for name in table.column_names])
            table = table.add_column(0, "seed", pyarrow.array([cell.seed] * len(table), pyarrow.int64()))
            tables.append(table.add_column(0, "arm", pyarrow.array([cell.arm] * len(table), pyarrow.string())))
        return pyarrow.concat_tables(tables, promote_options="default") if tables else pyarrow.table({})

    @cached_property
    def contrasts(self) -> pyarrow.Table:
        """A row for each contrast: difference, interval, p value and verdict. Counts as a look."""
        import pyarrow

        from reports.page.document import COMPARISON_KEYS, verdict_document

        rows = verdict_document(self._analysis)["contrasts"]
        self.sweep.record_look({row["arm"]: row["verdict"] for row in rows})
        wanted = ("arm", "baseline", "metric", *COMPARISON_KEYS, "p_holm", "margin_pp")
        return pyarrow.Table.from_pylist([{name: row.get(name) for name in wanted} for row in rows])

    def compare(self, treatment: str, baseline: str) -> dict[str, Any]:
        """Two arms, paired by seed: a row like those of `contrasts` in report.json. Raises UnknownNameError for an arm
        that the run does not have."""
        from reports.measure.measurements import Metric
        from reports.page.comparison import Group, compare_groups

        for arm in (treatment, baseline):
            if arm not in self.sweep.arms:
                raise UnknownNameError("arm", arm, self.sweep.arms)
        groups = [
            Group(arm, [cell for cell in self.sweep.cells if cell.arm == arm], Metric.of(self.sweep))
            for arm in (treatment, baseline)
        ]
        sweep = self.sweep
        return compare_groups(*groups, metric=sweep.metric, alpha=sweep.alpha, margin_pp=sweep.margin_pp, unlike=None)

    def figure(self, name: str) -> FigureView:
        """A figure of the report. Raises UnknownNameError, and RefusedError if the records hold nothing for it."""
        from reports.figures import drawn_figure

        figure = drawn_figure(self._analysis, name)
        if figure is None:
            raise RefusedError(f"{self.sweep.name}: its records hold nothing that the figure {name} shows.")
        return FigureView(figure.title, figure.caption, figure.svg, figure.csv)

    @cached_property
    def _analysis(self) -> Analysis:
        from reports.measure import analyse

        return analyse(self.sweep)


def load(run: str | Path, home: Path | None = None) -> Results:
    """A run by its name or folder; home: where names are looked for, $BENCH_HOME or ./runs by default. Raises
    RefusedError if it was never run, or if no cell is done."""
    from harness.records import read_sweep

    sweep = read_sweep(run_folder(str(run), home_folder(home)))
    require_any_done(sweep, "there is nothing to load")
    return Results(sweep)


def write_tables(results: Results, folder: Path, ending: str) -> Sequence[Path]:
    """Write every table that has rows as <folder>/<table>.<ending>; ending: csv or parquet."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in TABLES:
        table: pyarrow.Table = getattr(results, name)
        if len(table):
            path = folder / f"{name}.{ending}"
            (pyarrow.csv.write_csv if ending == "csv" else pyarrow.parquet.write_table)(table, path)
            written.append(path)
    return written
