"""The records of a run for Python and notebooks, whether from `bench run` or `bench import`.

    from harness.api import load

    run = load("std_norm")
    run.scores.to_pandas()
    run.compare("no_std", "group_std")["verdict"]
    run.figure("learning")

Tables are Arrow tables. Scores and samples have the columns that `bench import` reads. Like `bench verdict`, reading
`contrasts` shows the verdicts, so it counts as a look (an analysis of the results so far).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from harness.errors import RefusedError, UnknownNameError, few
from harness.namesakes import require_own_packages
from harness.plugins import user_code
from harness.runs import finished_analysis, home_folder, record_look

if TYPE_CHECKING:
    import pyarrow

    from harness.records import SweepRecord
    from reports.measure import Analysis

# This is checked at import, before another package could be loaded under one of bench's names.
require_own_packages()

Form = Literal["csv", "parquet"]
TABLES = ("scores", "steps", "samples", "contrasts")
"""The tables of a run: attributes of `Results`, and files written by `Results.export`."""

_IMPORTED_AS = {"problem_id": "problem", "n_tokens": "tokens"}
"""Maps columns of evals.parquet to their names in `bench import`."""


@dataclass(frozen=True)
class FigureView:
    """A figure of the report, in a form that a notebook displays."""

    title: str
    caption: str
    svg: str = field(repr=False)
    csv: str = field(repr=False)
    """The numbers in the figure."""

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True, repr=False)
class Results:
    """The finished cells of a run, as returned by `load`. Each table is built on first use."""

    analysis: Analysis

    def __repr__(self) -> str:
        sweep, n_done = self.sweep, sum(map(len, self.analysis.measurements.values()))
        seeds = few(list(map(str, sweep.seeds)))
        return f"<run {sweep.name}: arms {few(sweep.arms)}; seeds {seeds}; {n_done} of {len(sweep.cells)} cells done>"

    @property
    def sweep(self) -> SweepRecord:
        """The question as last run: its arms, seeds, metric and cells."""
        return self.analysis.sweep

    @cached_property
    def scores(self) -> pyarrow.Table:
        """A table with one row for each value of each metric in each evaluation.

        Columns: arm, seed, task, metric, value, step, and whether the evaluation is `final`. Values are as recorded:
        pass@k and other accuracies are fractions. A metric that a cell could not compute has no row.
        """
        import pyarrow

        rows = [
            {
                **{"arm": m.cell.arm, "seed": m.cell.seed, "task": row["task"], "metric": name, "value": value},
                **{"step": row["step"], "final": row["final"]},
            }
            for cells in self.analysis.measurements.values()
            for m in cells
            for row in m.scores
            for name, value in row["metrics"].items()
            if value is not None
        ]
        return pyarrow.Table.from_pylist(rows)

    @cached_property
    def steps(self) -> pyarrow.Table:
        """A table with one row for each training step: arm, seed, and the fields of steps.jsonl.

        A field that a cell did not record is null. The table is empty if nothing was trained, or if imported runs have
        no curves.
        """
        import pyarrow

        from reports.page.document import step_columns

        return pyarrow.table(step_columns(self.analysis))

    @cached_property
    def samples(self) -> pyarrow.Table:
        """A table with one row for each graded sample, for the cells that recorded samples.

        Columns: arm, seed, task, problem, sample, correct, step, tokens, text and more. The table is empty if no cell
        recorded samples.
        """
        import pyarrow

        tables = []
        for cell in (m.cell for cells in self.analysis.measurements.values() for m in cells):
            table = cell.read_evals()
            if table is None:
                continue
            table = table.rename_columns([_IMPORTED_AS.get(name, name) for name in table.column_names])
            table = table.add_column(0, "seed", pyarrow.array([cell.seed] * len(table), pyarrow.int64()))
            tables.append(table.add_column(0, "arm", pyarrow.array([cell.arm] * len(table), pyarrow.string())))
        return pyarrow.concat_tables(tables, promote_options="default") if tables else pyarrow.table({})

    @cached_property
    def contrasts(self) -> pyarrow.Table:
        """A table with one row for each declared contrast: difference, interval, p value and verdict.

        For a factorial, the rows are its main effects and interactions. Differences and intervals (`_pp`) are in
        percentage points. Reading this table counts as a look.
        """
        import pyarrow

        from reports.page.document import verdict_document
        from reports.report import Numbers

        document = verdict_document(self.analysis)
        # The look is recorded before any result is returned.
        record_look(self.sweep, document)
        rows = [row.as_json() for row in document.interactions or document.contrasts]
        wanted = ("arm", "baseline", "metric", *Numbers.model_fields, "p_holm", "margin_pp", "token_ratio")
        return pyarrow.Table.from_pylist([{name: row[name] for name in wanted if name in row} for row in rows])

    def compare(self, treatment: str, baseline: str, metric: str | None = None) -> dict[str, Any]:
        """Compare two arms, paired by seed, or by problem if no seed is known.

        metric: eval.final.[TASK.]NAME; by default the sweep's own metric.
        Returns a row like those of `contrasts` in report.json, with difference_pp, low_pp, high_pp, p, verdict and
        n_pairs. Raises UnknownNameError for an arm that the run does not have. Raises RefusedError for a metric that
        cannot compare arms, or for which an arm has no score.
        """
        from reports.measure.measurements import MetricError, TaskMetric
        from reports.page.comparison import Group, compare_groups

        sweep, wanted = self.sweep, metric or self.sweep.metric
        for arm in (treatment, baseline):
            if arm not in sweep.arms:
                raise UnknownNameError("arm", arm, sweep.arms)
        try:
            parsed = TaskMetric.parse(wanted, sweep)
        except MetricError as error:
            raise RefusedError("bench.in_metric", error=error) from None
        groups = [
            Group(arm, [cell for cell in sweep.cells if cell.arm == arm], parsed) for arm in (treatment, baseline)
        ]
        for group in groups:
            if not group.scored:
                raise RefusedError("bench.no_cell_with_metric", arm=group.label, metric=wanted)
        compared = compare_groups(
            *groups,
            metric=wanted,
            alpha=sweep.alpha,
            margin_pp=sweep.margin_pp,
            unlike=None,
            matching=sweep.matching.get(parsed.task),
        )
        return compared.as_json()

    def figure(self, name: str) -> FigureView:
        """Return a figure of the report. `bench ls figures` lists the names.

        Raises UnknownNameError for an unknown name, and RefusedError if the records have no data for the figure.
        """
        from reports.figures import drawn_figure

        figure = drawn_figure(self.analysis, name)
        if figure is None:
            raise RefusedError("bench.figure_without_data", sweep=self.sweep.name, figure=name)
        return FigureView(figure.title, figure.caption, figure.svg, figure.csv)

    def export(self, folder: str | Path, to: Form = "csv") -> list[Path]:
        """Write every non-empty table to <folder>/<table>.<to>. Return the paths.

        The contrasts are written too, so this counts as a look. Raises RefusedError for any other format.
        """
        import pyarrow.csv
        import pyarrow.parquet

        if to not in get_args(Form):
            raise RefusedError("bench.unknown_table_format", known=" or ".join(get_args(Form)), given=to)
        write = pyarrow.csv.write_csv if to == "csv" else pyarrow.parquet.write_table
        Path(folder).mkdir(parents=True, exist_ok=True)
        written = []
        for name in TABLES:
            if len(table := getattr(self, name)):
                written.append(Path(folder) / f"{name}.{to}")
                write(table, written[-1])
        return written


def load(run: str | Path, home: str | Path | None = None, trust_code: bool = False) -> Results:
    """Load a run by its name, folder or sweep file.

    home: the folder in which names are searched for; by default $BENCH_HOME or ./runs.
    trust_code: whether to run code that comes with the records even if you have not run it before, like --trust-code.

    The run's plug-ins stay loaded afterwards. Plug-ins that may not run, and damaged cells, are left out with a warning
    on stderr. Raises RefusedError if there is no such run, if it is a search, or if no cell is done.
    """
    user_code.trust_all(trust_code)
    return Results(finished_analysis(str(run), home_folder(None if home is None else Path(home))))
