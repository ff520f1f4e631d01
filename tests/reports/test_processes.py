from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest

import reports.analysis
from reports.page import write_report
from reports.processes import MANY_CELLS, SentOnce, each_in_processes, process_count
from tests.reports.synthetic import write_sweep


def half(number: int) -> float:
    if number == 13:
        raise ValueError("13 is unlucky")
    return number / 2


def test_results_come_in_the_order_of_the_items():
    assert each_in_processes(half, [3, 1, 2], 2) == each_in_processes(half, [3, 1, 2], 1) == [1.5, 0.5, 1.0]


def test_an_exception_in_another_process_is_raised_here():
    with pytest.raises(ValueError, match="13 is unlucky"):
        each_in_processes(half, [1, 13], 2)


def test_a_small_sweep_is_reported_by_one_process():
    assert process_count(MANY_CELLS - 1) == 1


def test_a_report_by_two_processes_has_the_same_bytes(tmp_path, monkeypatch):
    sweep = write_sweep(tmp_path / "sweep", {"base": 0.0, "up": 3.0}, seeds=3, texts=["Wait, 3 #### 3", "#### 5"])

    def written(processes: int) -> dict[Path, bytes]:
        monkeypatch.setattr(reports.analysis, "process_count", lambda n_cells: processes)
        folder = tmp_path / f"by_{processes}"
        write_report(sweep, folder)
        return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    assert written(2) == written(1)


def tenth(sent: SentOnce[list[int]], number: int) -> int:
    return sent.get()[0] * number


def test_what_all_items_need_is_sent_once(tmp_path):
    sent = SentOnce([10], tmp_path / "sent.pickle")
    assert each_in_processes(partial(tenth, sent), [1, 2, 3, 4], 2) == [10, 20, 30, 40]
    assert len(pickle.dumps(sent)) < 500
    assert sent.get() is sent.get()
