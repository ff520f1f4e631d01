"""A knob is declared once, at its field: everything else that knows it asks the field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field

from harness import plugins
from harness.cli.look import _knobs as listed_knobs
from harness.config import knobs, resolve
from harness.config.hashing import training_hash
from harness.config.knobs import active
from harness.config.run_spec import OF_TRAINING, RunSpec
from harness.config.train import TrainSpec
from harness.errors import RefusedError
from harness.plan.gate import check_gate
from harness.settings import Settings
from harness.settings.marks import YOUNGER, Acts, Hashed
from reports.page.setup import _as_lines as as_lines
from tests.harness.config.cases import spec


class _Train(TrainSpec):
    dampening: Annotated[float, YOUNGER] = Field(0.5, ge=0, description="how much of a step is held back")


class _Spec(RunSpec):
    train: Annotated[_Train, OF_TRAINING]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (knobs, resolve):
        monkeypatch.setattr(module, "RunSpec", _Spec)
    plugins._forget()  # what was derived from the fields of before
    yield
    plugins._forget()


def refusal(settings: dict[str, Any]) -> str:
    with pytest.raises(RefusedError) as refused:
        spec(settings)
    return str(refused.value)


def test_a_new_knob_is_one_field() -> None:
    assert "unknown key train.dampening" in refusal({"train.dampening": 1.0})


@pytest.mark.usefixtures("known")
def test_it_is_parsed_hashed_gated_listed_shown_and_refused() -> None:
    default, other = spec(), spec({"train.dampening": 1.0})
    assert (active(default)["train.dampening"], active(other)["train.dampening"]) == (0.5, 1.0)
    assert training_hash(other) != training_hash(default)
    assert check_gate({"one": default, "other": other}, [], {}).violations == {
        "train.dampening": {"one": 0.5, "other": 1.0}
    }
    listed = next(knob for knob in listed_knobs() if knob.name == "train.dampening")
    assert listed.text == "how much of a step is held back"
    assert listed.facts == {"type": "float", "default": "0.5", "range": ">= 0"}
    assert "train.dampening=1.0" in as_lines(other.model_dump(mode="json")).splitlines()
    assert "did you mean train.dampening" in refusal({"train.dampning": 1.0})
    assert "train.dampening is -1: input should be greater than or equal to 0" in refusal({"train.dampening": -1})


def test_left_at_its_default_it_moves_no_hash(request: pytest.FixtureRequest) -> None:
    before = training_hash(spec())
    request.getfixturevalue("known")
    assert training_hash(spec()) == before


def test_every_knob_is_marked_with_what_it_acts_on() -> None:
    assert not [name for name, knob in knobs.spec_knobs().items() if knob.inherited(Acts) is None]


def test_only_a_knob_with_a_default_can_be_left_out_of_a_hash_at_it() -> None:
    younger = [knob for knob in knobs.spec_knobs().values() if (mark := knob.mark(Hashed)) and not mark.at_default]
    assert {knob.name for knob in younger} >= {"model.head_dtype", "train.optimizer.type", "objective.pass_k"}
    assert all(not isinstance(knob.default, Settings) for knob in younger)
    assert all(not field.is_required() for knob in younger if not knob.is_selector for field in knob.fields)
