"""Runs in Python: tables, comparisons and figures, and tables that are read back."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from scipy import stats

from harness.api import load
from harness.errors import RefusedError, UnknownNameError
from tests.harness.cli.conftest import Bench, bench
from tests.harness.imports.test_import import write_table
from tests.reports.synthetic import STEPS, write_sweep

__all__ = ["bench"]


def test_a_run_gives_tables_a_comparison_and_figures(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", {"base": 0.0, "up": 3.0}, seeds=4)
    run = load("one", tmp_path)
    final = run.scores.filter(pc.field("final") & (pc.field("metric") == "pass@1")).to_pandas()
    by_arm = {arm: [*rows.sort_values("seed")["value"]] for arm, rows in final.groupby("arm")}
    (row,) = run.contrasts.to_pylist()
    assert row["p"] == pytest.approx(stats.ttest_rel(by_arm["up"], by_arm["base"]).pvalue)
    assert run.compare("up", "base")["difference_pp"] == pytest.approx(row["difference_pp"])
    assert run.compare("base", "up")["difference_pp"] == pytest.approx(-row["difference_pp"])
    assert len(run.steps) == 8 * STEPS and {"arm", "seed", "step", "reward/mean"} <= {*run.steps.column_names}
    assert {"arm", "seed", "problem", "sample", "correct"} <= {*run.samples.column_names}
    with pytest.raises(UnknownNameError, match="unknown arm 'upp'; did you mean up"):
        run.compare("upp", "base")
    with pytest.raises(RefusedError, match="no records in"):
        load("other", tmp_path)


@pytest.mark.slow
def test_a_figure_shows_in_a_notebook(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", {"base": 0.0, "up": 3.0}, seeds=3)
    figure = load(tmp_path / "one").figure("forest")
    assert figure._repr_svg_().lstrip().startswith(("<svg", "<?xml")) and "arm,baseline,seed" in figure.csv


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_what_is_exported_is_imported_to_the_same_numbers(bench: Bench, tmp_path: Path, form: str) -> None:
    bench("import", "mine", write_table(tmp_path / "results.csv", {"base": 0.3, "tuned": 0.7}))
    result = bench("export", "mine", "--to", form, "--out", "out", "--json")
    assert result.code == 0, result.err
    assert [Path(path).name for path in result.document] == [
        f"{name}.{form}" for name in ("scores", "samples", "contrasts")
    ]
    for table in ("samples", "scores"):
        again = bench("import", f"from_{table}", f"out/{table}.{form}", "--metric", "eval.final.results.pass@1")
        assert again.code == 0, again.err
        pairs = [load(name, Path("runs")).compare("tuned", "base") for name in ("mine", f"from_{table}")]
        for key in ("difference_pp", "p", "low_pp", "high_pp", "n_pairs"):
            assert pairs[0][key] == pytest.approx(pairs[1][key]), key
