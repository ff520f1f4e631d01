"""What somebody else may have done to an evaluation's folder is told, and never taken for samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RefusedError
from harness.records.files import DamagedRecordError
from harness.run.provenance import append_start
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SAMPLES_FILE, RememberingSampler, SampleStore, claimed
from tests.harness.evaluate.conftest import Make
from tests.refusals import refuses

ROW = {
    **{"task": "arithmetic", "problem_id": "a", "sample": 0, "text": "t", "n_tokens": 1, "truncated": False},
    **{"extracted": None, "correct": False, "reason": "unparsed", "verdicts": "{}", "reasons": "{}"},
    **{"faulty_steps": None, "turns": None},
}


@pytest.fixture
def folder(evaluation: Make, home: Path) -> Path:
    """The folder of an evaluation that has been opened and has no samples yet."""
    path = evaluation().folder(home)
    with SampleStore.opened(path, evaluation().identity):
        pass
    return path


def read(evaluation: Make, folder: Path) -> list[Any]:
    with SampleStore.opened(folder, evaluation().identity) as store:
        return store.rows()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("spec.json", b"[1]", r"spec\.json: is damaged: it contains no conditions"),
        ("spec.json", b"null", r"spec\.json: is damaged: it contains no conditions"),
        ("spec.json", b"{", r"spec\.json: is damaged"),
        ("evals.parquet", b"garbage", r"evals\.parquet: is damaged"),
        ("evals.parquet", b"", r"evals\.parquet: is damaged"),
        ("evals.jsonl", b"no JSON\n", r"evals\.jsonl, line 1: is damaged"),
        ("evals.jsonl", b"\0\0\n", r"evals\.jsonl, line 1: is damaged"),
        (
            "evals.jsonl",
            json.dumps(ROW).encode() + b'\n{"text": "t"}\n',
            r"evals\.jsonl, row 2: .*: task, problem_id, ",
        ),
        (
            "evals.jsonl",
            json.dumps(ROW | {"problem_id": [1]}).encode() + b"\n",
            r"evals\.jsonl, row 1: .*: problem_id\.",
        ),
    ],
)
def test_a_damaged_file_is_named(evaluation: Make, folder: Path, name: str, content: bytes, says: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(DamagedRecordError, match=says):
        read(evaluation, folder)


def test_a_parquet_file_that_was_cut_is_named(evaluation: Make, folder: Path) -> None:
    SampleStore(folder / SAMPLES_FILE).compact([ROW] * 9)  # type: ignore[list-item]
    assert len(read(evaluation, folder)) == 1
    path = folder / "evals.parquet"
    whole = path.read_bytes()
    for end in (4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with refuses(DamagedRecordError, "records.table_damaged", path="evals.parquet"):
            read(evaluation, folder)


def test_a_row_of_a_remembering_sampler_that_lacks_its_text_is_named(home: Path) -> None:
    with claimed(home, {}):
        (home / "samples.jsonl").write_text('{"key": "k", "n_tokens": 1, "truncated": false}\n')
    opened = RememberingSampler.opened(home, {}, lambda: pytest.fail("drew"), append_start, lambda *_: None)
    with (
        refuses(DamagedRecordError, "records.row_lacks_fields", path="samples.jsonl", number=1, lacking="text"),
        opened,
    ):
        pass


@pytest.mark.parametrize("name", ["evals.jsonl", "evals.parquet", "lease.json", "spec.json"])
def test_a_folder_in_the_place_of_a_file_is_named(evaluation: Make, folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises((RefusedError, DamagedRecordError), match=rf"{name}: cannot be \w+ \(Is a directory\)"):
        read(evaluation, folder)


@pytest.mark.parametrize("home", ["file", "/dev/null", "/proc"])
def test_a_home_that_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with (
        refuses(RefusedError, "sampling.folder_not_writable"),
        claimed(Path(home, "evals/a"), {}),
    ):
        pass


def test_what_goes_wrong_elsewhere_is_not_blamed_on_the_folder(home: Path) -> None:
    with pytest.raises(FileNotFoundError, match="weights"), claimed(home / "evals", {}):
        Path("no such model/weights").read_bytes()
    with pytest.raises(ConnectionResetError), claimed(home / "evals", {}):
        raise ConnectionResetError("by peer")


@pytest.mark.parametrize("name", ["evals.jsonl", "evals.parquet", "samples.jsonl"])
def test_samples_of_unknown_conditions_are_refused(folder: Path, name: str) -> None:
    (folder / "spec.json").unlink()
    with claimed(folder, {}):
        pass
    (folder / "spec.json").unlink()
    (folder / name).write_text("")
    with pytest.raises(RefusedError, match=rf"contains samples \({name}\) without spec\.json"), claimed(folder, {}):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("content", ["{", "[1]", "null", '{"grader": "exact"}'])
def test_a_damaged_account_of_the_grading_only_means_grading_again(
    evaluation: Make, sampler: EngineSampler, home: Path, content: str
) -> None:
    asked = evaluation()
    first = asked.run(home, lambda: sampler)
    path = Path(first["path"])
    with SampleStore.opened(path, asked.identity) as store:
        store.compact([row | {"correct": True} for row in store.rows()])
    (path / "grading.json").write_text(content)
    again = asked.run(home, lambda: pytest.fail("drew"))
    assert again["metrics"] == first["metrics"]
