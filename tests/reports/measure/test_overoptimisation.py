from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from reports.formats import Table
from reports.measure import Analysis, analyse
from reports.measure.measurements import Measurement, read_measurements
from reports.measure.overoptimisation import KL, PROXY, STRETCHES, TRUTH, arm_paths, judge_and_truth, proxy_and_truth
from reports.page.document import report_document
from reports.page.tables import report_tables
from reports.report import Report
from tests.reports.rewriting import rewrite_rows, write_steps
from tests.reports.synthetic import write_sweep

Points = Sequence[tuple[float | None, float | None, float | None]]


def cells_of(folder, by_seed: Sequence[Points]) -> list[Measurement]:
    """An arm whose cells recorded these (KL, proxy, truth), a step each."""
    sweep = write_sweep(folder, {"arm": 0.0}, seeds=len(by_seed))
    for cell, points in zip(sweep.cells, by_seed, strict=True):
        rows = [
            {"step": i, "generated_tokens": i, KL: kl, PROXY: proxy, TRUTH: truth}
            for i, (kl, proxy, truth) in enumerate(points, start=1)
        ]
        write_steps(cell, rows)
    return read_measurements(sweep)["arm"]


def test_the_mean_is_over_seeds_at_the_same_share_of_training(tmp_path):
    """The longer cell is cut into as many stretches as the shorter has steps; steps without a KL do not count."""
    short = [(0.0, 0.0, 0.2), (2.0, 1.0, 0.4)]
    long = [(1.0, 1.0, 0.1), (3.0, 2.0, 0.3), (None, 9.0, 0.9), (6.0, 3.0, 0.6), (8.0, 5.0, 0.8)]
    paths = arm_paths(cells_of(tmp_path, [short, long]))
    assert paths is not None
    np.testing.assert_allclose(paths.seeds[1].kl_nats, [2.0, 7.0])
    np.testing.assert_allclose(paths.mean.kl_nats, [1.0, 4.5])
    np.testing.assert_allclose(paths.mean.proxy_sd, [0.75, 2.5])
    np.testing.assert_allclose(paths.mean.correct, [0.2, 0.55])


def test_long_training_is_averaged_over_stretches_in_the_order_of_steps(tmp_path):
    paths = arm_paths(cells_of(tmp_path, [[(100.0 - i, float(i), 0.5) for i in range(3 * STRETCHES)]]))
    assert paths is not None
    np.testing.assert_allclose(paths.mean.kl_nats, [99.0 - 3 * i for i in range(STRETCHES)])
    np.testing.assert_allclose(paths.mean.proxy_sd, [1.0 + 3 * i for i in range(STRETCHES)])


def test_the_end_against_the_peak(tmp_path):
    """Three seeds peak together; then the truth falls while the proxy rises in one only."""
    rising = [(0.0, 0.0, 0.2), (4.0, 1.0, 0.6), (9.0, 2.0, 0.3)]
    both_fall = [(0.0, 0.0, 0.2), (4.0, 1.0, 0.6), (9.0, 0.7, 0.3)]
    both_rise = [(0.0, 0.0, 0.2), (4.0, 1.0, 0.6), (9.0, 1.2, 0.6)]
    end = proxy_and_truth(cells_of(tmp_path, [rising, both_fall, both_rise]))
    assert end is not None
    assert end.as_json() == pytest.approx(
        {
            "kl_nats": 9.0,
            "proxy_sd": 1.3,
            "correct_pp": 40.0,
            "peak_kl_nats": 4.0,
            "peak_correct_pp": 60.0,
            "proxy_since_peak_sd": 0.3,
            "correct_since_peak_pp": -20.0,
            "n_overoptimised": 1,
            "n": 3,
        }
    )


@pytest.mark.parametrize("points", [[(1.0, None, 0.2)], [(None, 1.0, 0.2)], [(1.0, 1.0, None)], []])
def test_an_arm_without_all_three_has_no_path(tmp_path, points):
    cells = cells_of(tmp_path, [points])
    assert arm_paths(cells) is None
    assert proxy_and_truth(cells) is None


def table_of(analysis: Analysis, report: Report, title: str) -> Table:
    (found,) = (table for table in report_tables(analysis, report)["Learning"] if table.title.startswith(title))
    assert all(len(row) == len(found.columns) for row in found.rows)
    return found


def test_the_table_has_a_row_for_each_arm_with_a_proxy(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "proxy": 0.0}, seeds=2)
    rewrite_rows(sweep, "steps.jsonl", lambda row: {key: row[key] for key in row if key != PROXY}, "base")
    analysis = analyse(sweep)
    report = report_document(analysis)
    assert report.arms[0].proxy_and_truth is None
    ((name, *cells),) = table_of(analysis, report, "Proxy and").rows
    assert name == "proxy"
    assert cells[-1].split() == ["2", "of", "2"]
    assert float(cells[-3]) < 0 < float(cells[-2])


def test_a_judge_is_shown_at_the_start_and_at_the_end(tmp_path):
    """Twelve steps: a tenth is two of them. The second seed had nothing to flip at the end."""
    sweep = write_sweep(tmp_path, {"base": 0.0, "judge": 0.0}, seeds=2)
    for cell in (cell for cell in sweep.cells if cell.arm == "judge"):
        write_steps(
            cell,
            [
                {
                    **{"step": step, "generated_tokens": step, TRUTH: 0.1 * (step > 6) + 0.2 * cell.seed},
                    **{"judge/tie_frac": 0.5, "judge/first_frac": 0.6, "judge/right_frac": 0.4 + 0.1 * (step == 1)},
                    "judge/flip_frac": None if cell.seed and step > 6 else step / 100,
                    "judge/no_scores_frac": 0.0,
                }
                for step in range(1, 13)
            ],
        )
    analysis = analyse(sweep)
    found = judge_and_truth(analysis.measurements["judge"])
    assert found is not None
    start, end = found.start, found.end
    assert start.as_json() == pytest.approx(
        {
            "flip_frac": 0.015,
            "first_frac": 0.6,
            "tie_frac": 0.5,
            "no_scores_frac": 0,
            "right_frac": 0.45,
            "correct": 0.1,
        }
    )
    assert (end.flip_frac, end.right_frac, end.correct) == pytest.approx((0.115, 0.4, 0.2))
    assert judge_and_truth(analysis.measurements["base"]) is None

    report = report_document(analysis)
    assert report.arms[1].judge == found
    assert "judge" not in report.arms[0].as_json()
    (row,) = table_of(analysis, report, "Judge and").rows
    assert [row[place].split(" → ") for place in (0, 1, -1)] == [["judge"], ["1.5%", "11.5%"], ["10%", "20%"]]


def test_what_a_judge_said_as_a_grader_is_summed_up_beside_its_cost(tmp_path):
    sweep = write_sweep(tmp_path, {"rule": 0.0, "judged": 0.0}, seeds=2)
    for cell in (cell for cell in sweep.cells if cell.arm == "judged"):
        said = {"judge/questions": 10, "judge/prompt_tokens": 100, "judge/completion_tokens": 20 + 10 * cell.seed}
        shares = {"judge/undecided_frac": 0.1, "judge/rule_correct": 0.4, "judge/agreement_frac": 0.9}
        steps = [{"step": step, "generated_tokens": step, TRUTH: 0.5, **said, **shares} for step in (1, 2, 3)]
        # κ is not known in a step whose verdicts are all alike.
        write_steps(cell, [row | {"judge/kappa": None if row["step"] == 2 else 0.2 * row["step"]} for row in steps])
    analysis = analyse(sweep)
    report = report_document(analysis)
    rule, judged = report.arms
    assert "judge_replies" not in rule.as_json()
    assert judged.judge_replies is not None and judged.judge_replies.as_json() == pytest.approx(
        {
            **{"questions": 30, "prompt_tokens": 300, "completion_tokens": 75},
            **{"undecided_frac": 0.1, "correct": 0.5, "rule_correct": 0.4, "agreement_frac": 0.9, "kappa": 0.4},
        }
    )
    assert [row[0] for row in table_of(analysis, report, "Judges").rows] == ["judged"]
