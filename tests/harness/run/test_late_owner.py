"""Owners of a cell, and parents of owners, that were suspended and wake up after another process has ended the cell."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.executors.base import Ended, Job, JobState
from harness.records import CellRecord
from harness.records.fence import LeaseLostError, directory_of
from harness.records.files import append_jsonl
from harness.records.lease import Leases, epoch_of, hold_lease
from harness.run.loop import record_end
from harness.shelves.ray.slot_actor import pack, unpack_into
from tests.harness.run.small import small_spec

CASES = ("training", "resumed", "evaluated_anew")


def late_owners(cases: Sequence[str], every: int) -> dict[str, list[dict[str, object]]]:
    """Return, for each case, what each late owner changed. One process imports torch for all."""
    command = [sys.executable, "-m", "tests.harness.run.late_owner", ",".join(cases), str(every)]
    printed = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    return {case: [row for row in rows if row["case"] == case] for case in cases}


@pytest.mark.slow
def test_a_late_owner_changes_nothing() -> None:
    for case, found in late_owners(CASES, 9).items():
        assert len(found) >= 4 and any(one["ended"] for one in found), case
        assert [one for one in found if one["changed"] or one["ended"] not in (0, 7)] == [], case


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_late_owner_changes_nothing_at_any_write(case: str) -> None:
    found = late_owners([case], 1)[case]
    assert len(found) >= 30
    assert [one for one in found if one["changed"] or one["ended"] not in (0, 7)] == []


@pytest.fixture
def cell(tmp_path: Path) -> CellRecord:
    cell = CellRecord.at(tmp_path / "s" / "cells" / "one-s0-0123456789")
    cell.path.mkdir(parents=True)
    return cell


def job_of(cell: CellRecord) -> Job:
    return Job("cell", "s/cells/one-s0-0123456789", small_spec(), epoch=epoch_of(cell.path))


@pytest.mark.parametrize("state", ["done", "failed", "interrupted"])
@pytest.mark.parametrize("had_begun", [True, False])
@pytest.mark.parametrize("ended", ["failed", "refused", "invalid", "damaged"])
def test_a_late_parent_records_no_end_of_a_cell_that_another_process_has_run(
    cell: CellRecord, state: str, had_begun: bool, ended: JobState
) -> None:
    job = job_of(cell)
    if had_begun:
        with hold_lease(cell.path, job=job.id):
            cell.write_status("interrupted", reason="its process died")
    with hold_lease(cell.path, job="another"):
        cell.write_status(state, reason="as the other process says")  # type: ignore[arg-type]
    before = cell.read_status()
    output = "its output" if ended == "failed" else ""
    assert record_end(Ended(job, ended, "it crashed", output), cell).state == "taken" or cell.is_done
    assert cell.read_status() == before and not cell.log.exists()


@pytest.mark.parametrize("had_begun", [True, False])
def test_a_parent_records_the_end_of_its_own_worker(cell: CellRecord, had_begun: bool) -> None:
    with hold_lease(cell.path, job="an earlier run"):
        cell.write_status("interrupted")
    job = job_of(cell)
    if had_begun:
        with hold_lease(cell.path, job=job.id):
            pass
    record_end(Ended(job, "failed", "it crashed"), cell)
    assert (cell.state, cell.reason) == ("failed", "it crashed")
    assert epoch_of(cell.path) == 1 + had_begun, "to record it is no start"


def test_a_parent_need_not_wait_for_the_lease_of_its_dead_worker(
    cell: CellRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks, only the parent knows that it is dead."""
    monkeypatch.setattr("harness.records.lease._lock", lambda handle: False)
    monkeypatch.setattr("harness.records.lease._lock_of", lambda path: "unknown")
    job = job_of(cell)
    monkeypatch.setattr(Leases, "_is_stale", lambda *_: pytest.fail("it waits"))
    leases = Leases()
    owned = leases.hold(cell.path, job=job.id)
    owned.__enter__()  # and never ends
    record_end(Ended(job, "failed", "it crashed"), cell)
    assert cell._written_status()["state"] == "failed"


def test_the_end_of_a_cell_that_another_process_is_running_is_its_own(cell: CellRecord) -> None:
    job = job_of(cell)
    with hold_lease(cell.path, job="another"):
        cell.write_status("interrupted")
        record_end(Ended(job, "failed", "it crashed"), cell)
        assert cell._written_status()["state"] == "interrupted"


def test_a_parcel_replaces_the_files_of_a_cell_and_a_late_one_does_not(cell: CellRecord, tmp_path: Path) -> None:
    source = tmp_path / "remote"
    for name in ("checkpoints/step-000002/weights", "rollouts/a.parquet", "status.json", "steps.jsonl"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("remote")
    for name in ("checkpoints/step-000000/weights", "checkpoints/step-000002/old", "steps.jsonl", "evals.jsonl"):
        (cell.path / name).parent.mkdir(parents=True, exist_ok=True)
        (cell.path / name).write_text("here")
    parcel = io.BytesIO()

    def files() -> dict[str, str]:
        found = (path for path in cell.path.rglob("*") if path.is_file() and path.name != "lease.json")
        return {str(path.relative_to(cell.path)): path.read_text() for path in found}

    with hold_lease(cell.path) as lease:
        pack(source, parcel)
        unpack_into(parcel, cell.path)
        assert files() == {
            str(path.relative_to(source)): path.read_text() for path in source.rglob("*") if path.is_file()
        }
        before = files()
        (source / "status.json").write_text("late")
        pack(source, parcel)
        directory_of(cell.path, lease.owner).rename(tmp_path / "shut")  # as whoever takes the cell over does
        with pytest.raises(LeaseLostError):
            append_jsonl(cell.path / "steps.jsonl", [{}])
        with pytest.raises(LeaseLostError):
            unpack_into(parcel, cell.path)
        assert files() == before
