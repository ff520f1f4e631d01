"""Runs in Python: tables, comparisons and figures, and tables that are read back."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from scipy import stats

from harness.api import load
from harness.errors import RefusedError, UnknownNameError
from harness.records import read_sweep
from tests.harness.cli.conftest import Bench, bench
from tests.harness.shelves.imports.test_import import write_table
from tests.refusals import refuses
from tests.reports.synthetic import STEPS, write_sweep

__all__ = ["bench"]


@pytest.mark.slow
def test_a_run_gives_tables_a_comparison_and_figures(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", {"base": 0.0, "up": 3.0}, seeds=4)
    run = load("one", str(tmp_path))
    assert "8 of 8" in repr(run)
    final = run.scores.filter(pc.field("final") & (pc.field("metric") == "pass@1")).to_pandas()
    by_arm = {arm: [*rows.sort_values("seed")["value"]] for arm, rows in final.groupby("arm")}
    (row,) = run.contrasts.to_pylist()
    assert row["p"] == pytest.approx(stats.ttest_rel(by_arm["up"], by_arm["base"]).pvalue)
    assert run.compare("up", "base")["difference_pp"] == pytest.approx(row["difference_pp"])
    assert run.compare("base", "up")["difference_pp"] == pytest.approx(-row["difference_pp"])
    assert len(run.steps) == 8 * STEPS and {"arm", "seed", "step", "reward/mean"} <= {*run.steps.column_names}
    assert {"arm", "seed", "problem", "sample", "correct"} <= {*run.samples.column_names}
    assert run.compare("up", "base", "eval.final.pass@4")["metric"] == "eval.final.pass@4"


def test_what_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", {"base": 0.0, "up": 3.0}, seeds=3)
    run = load(tmp_path / "one")
    with refuses(UnknownNameError, "bench.unknown_name", noun="arm", nearest="; did you mean up?"):
        run.compare("upp", "base")
    with refuses(RefusedError, "bench.in_metric"):
        run.compare("up", "base", "eval.final.sum.pass@1")
    with refuses(UnknownNameError, "bench.unknown_name", noun="figure", nearest="; did you mean forest?"):
        run.figure("forst")
    with refuses(RefusedError, "bench.unknown_table_format", known="csv or parquet", given="json"):
        run.export(tmp_path / "out", "json")  # type: ignore[arg-type]
    with refuses(RefusedError, "bench.no_records_of_sweep"):
        load("other", tmp_path)


def test_a_damaged_cell_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path / "one", {"base": 0.0, "up": 3.0}, seeds=3)
    damaged = next(cell.path for cell in read_sweep(tmp_path / "one").cells if (cell.arm, cell.seed) == ("up", 1))
    (damaged / "scores.jsonl").write_text("nothing\n")
    run = load("one", tmp_path)
    assert "up-s1" in capsys.readouterr().err
    assert run.compare("up", "base")["n_pairs"] == 2


@pytest.mark.slow
def test_a_figure_shows_in_a_notebook(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", {"base": 0.0, "up": 3.0}, seeds=3)
    figure = load(tmp_path / "one").figure("forest")
    assert figure._repr_svg_().lstrip().startswith(("<svg", "<?xml")) and "arm,baseline,seed" in figure.csv


@pytest.mark.slow
def test_whoever_reads_the_contrasts_has_looked(bench: Bench, tmp_path: Path) -> None:
    bench("import", "mine", write_table(tmp_path / "results.csv", {"base": 0.3, "tuned": 0.7}))
    run = load("mine", "runs")
    assert run.compare("tuned", "base")["verdict"] == "better"
    assert read_sweep(tmp_path / "runs/mine").looks == []
    verdicts = {row["arm"]: row["verdict"] for row in run.contrasts.to_pylist()}
    (look,) = read_sweep(tmp_path / "runs/mine").looks
    assert look.verdicts == verdicts == {"tuned": "better"}


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
