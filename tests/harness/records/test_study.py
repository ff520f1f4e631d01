from __future__ import annotations

import subprocess
import sys

import pytest

from harness.records.files import DamagedRecordError
from harness.records.schema import SCHEMA, OtherVersionError
from harness.records.study import read_study
from tests.refusals import refuses
from tests.reports.search.studies import confirmation, study_document, write_study


def test_a_record_is_read_whole(tmp_path):
    study = write_study(tmp_path, study_document(20, confirmation=confirmation(7)))
    assert (len(study.trials), study.best, study.objectives[0].direction) == (20, 7, "maximize")
    assert study.best_trial is not None and study.best_trial.number == 7
    assert study.default_trial is not None and study.default_trial.number == 0
    assert study.knobs["objective.rule.clip_high"].when == {"train.updates_per_rollout": [2, 4]}
    assert study.trials[0].intermediate[0][0] == 10
    assert study.confirmation is not None and study.confirmation.shrinkage_pp == 3.8


def test_what_is_not_there_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_study(tmp_path)
    with pytest.raises(KeyError):
        write_study(tmp_path, study_document(2)).trial(5)


@pytest.mark.parametrize("text", [b"", b'{"schema": 1, "tri', b"[]", b"\xff"])
def test_what_is_no_record_is_written_anew_by_the_search(tmp_path, text):
    (tmp_path / "study.json").write_bytes(text)
    with refuses(DamagedRecordError, "records.study_damaged"):
        read_study(tmp_path)


def test_a_missing_field_is_named(tmp_path):
    for field in (whole := study_document(1)).keys() - {"schema"}:
        with refuses(DamagedRecordError, "records.study_damaged", path="study.json") as refused:
            write_study(tmp_path, {name: value for name, value in whole.items() if name != field})
        assert str(refused.value.fields["fault"]).startswith(field)


def changed(number: int, /, **fields: object) -> dict[str, object]:
    document = study_document(4)
    document["trials"][number] |= fields
    return document


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], ""),
        (study_document(1, seeds="0"), "seeds"),
        (study_document(1, best=float("nan")), ""),
        (study_document(4, front=[99]), "99"),
        (study_document(4, best=3), "3"),
        (study_document(1) | {"objectives": []}, "0"),
        (study_document(1, confirmation=confirmation(5)), "confirmation: 5"),
        (study_document(1, confirmation=confirmation(0, contrast={})), "confirmation.contrast:"),
        (changed(0, state="done"), "trials.0.state"),
        (changed(0, values=[0.1, 0.2]), "0: 2 1"),
        (changed(0, values=None), "0:"),
        (changed(1, number=0), "number"),
        (changed(1, params={"seed": 1}), "1: seed"),
        (changed(1, same_as=9), "1: 9,"),
        (study_document(0, knobs={"a.b": {"kind": "float"}}), "float"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, document, named):
    with refuses(DamagedRecordError, "records.study_damaged", path="study.json") as refused:
        write_study(tmp_path, document)
    assert all(name in str(refused.value.fields["fault"]) for name in named.split())


@pytest.mark.parametrize(("schema", "code"), [(SCHEMA + 1, "newer_version"), (1, "development_version")])
def test_a_study_of_another_version_is_refused(tmp_path, schema, code):
    with refuses(OtherVersionError, f"records.{code}", path="study.json"):
        write_study(tmp_path, study_document(1, schema=schema))


@pytest.mark.slow
def test_reading_needs_no_optuna():
    code = "import sys, harness.records.study, reports.search; print([m for m in sys.modules if m in %r])"
    heavy = ("optuna", "torch", "mlflow", "matplotlib", "scipy", "jinja2")
    output = subprocess.run([sys.executable, "-c", code % (heavy,)], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"
