from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet

from reports.measure import analyse
from reports.measure.samples import SAMPLE_CHARACTERS, sample_completions
from tests.reports.synthetic import write_sweep

ARMS = {"base": 0.0, "up": 3.0}


def test_completions_along_training_and_of_the_final_evaluation(tmp_path):
    samples = sample_completions(analyse(write_sweep(tmp_path, ARMS, seeds=2)))
    assert list(samples) == ["base", "up"]
    assert {sample.seed for sample in samples["up"]} == {0}
    whens = ["training step 1", "training step 21", "training step 31", "final evaluation", "final evaluation"]
    assert [sample.when for sample in samples["up"]] == whens
    assert samples["up"][0].text.startswith("step 1: ")
    assert "reward" in samples["up"][0].outcome
    assert samples["up"][3].outcome == "correct, 12 tokens"


def test_long_texts_are_cut(tmp_path):
    samples = sample_completions(analyse(write_sweep(tmp_path, ARMS, seeds=1, texts=[1000 * "x"])))
    assert samples["base"][-1].text == SAMPLE_CHARACTERS * "x" + " … (400 more characters)"


def test_cells_that_kept_no_text_show_nothing(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1)
    for cell in sweep.cells:
        (cell.path / "evals.parquet").unlink()
        for path in cell.rollouts.glob("*.parquet"):
            path.unlink()
    assert sample_completions(analyse(sweep)) == {}
    base, _ = sweep.cells
    pyarrow.parquet.write_table(pa.table({"step": [1], "problem_id": ["a"]}), base.rollouts / "000001-000001.parquet")
    assert sample_completions(analyse(sweep)) == {}
