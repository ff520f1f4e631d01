"""What may be given as MODEL, and what is then loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.config.hashing import weights_fingerprint
from harness.config.model_source import TINY
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.models.start import StartingPoint
from harness.plan.subject import Subject, find_subject
from harness.records import CellRecord
from harness.run.checkpoint_cell import load_as_it_is
from harness.training.checkpoint import Checkpoint, save_checkpoint, trained_weights
from tests.harness.run.small import small_spec
from tests.refusals import refuses

CPU = ("torch", "cpu", "float32")


def cell_of(home: Path, spec: RunSpec, change: float, steps: tuple[int, ...] = (10,)) -> Path:
    """A cell's folder, whose weights are the start's plus `change` times the step."""
    path = home / "mine" / "cells" / "one-s0-0123456789"
    path.mkdir(parents=True)
    (path / "spec.json").write_text(spec.model_dump_json())
    model = StartingPoint().for_training(spec, spec.model.source).model
    start = {name: weight.clone() for name, weight in trained_weights(model).items()}
    for step in steps:
        weights = {name: weight + change * step for name, weight in start.items()}
        save_checkpoint(path / "checkpoints", Checkpoint(step, 0, weights, {}, {}))
    return path


def loaded(subject: Subject) -> LanguageModel:
    return load_as_it_is(subject.spec, StartingPoint())


def state(subject_words: str) -> dict[str, torch.Tensor]:
    return dict(loaded(find_subject(subject_words, *CPU)).model.state_dict())


def test_a_source_and_its_folder_are_one_model() -> None:
    by_name, by_folder = find_subject("builtin:tiny", *CPU), find_subject(str(TINY), *CPU)
    assert weights_fingerprint(by_name.spec) == weights_fingerprint(by_folder.spec)
    assert (by_name.label, by_folder.label) == ("tiny", "tiny")
    expected = load_model("builtin:tiny").model.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded(by_folder).model.state_dict().items())


def test_nothing_is_left_to_the_machine() -> None:
    spec = find_subject("builtin:tiny", "auto", "auto", "auto").spec
    assert "auto" not in (spec.rollout.engine, spec.train.device, spec.model.dtype)


def test_a_cell_is_its_newest_checkpoint(tmp_path: Path) -> None:
    path = cell_of(tmp_path, small_spec(), change=0.01, steps=(10, 20))
    start = load_model("builtin:tiny").model.state_dict()
    newest, older = state(str(path)), state(str(path / "checkpoints" / "step-000010"))
    name = "model.embed_tokens.weight"
    assert torch.equal(newest[name], start[name] + 0.2)
    assert torch.equal(older[name], start[name] + 0.1)
    labels = {find_subject(str(place), *CPU).label for place in (path, path / "checkpoints" / "step-000020")}
    assert labels == {"one-s0-0123456789-step-000020"}


def test_a_fingerprint_is_that_of_the_weights(tmp_path: Path) -> None:
    spec = small_spec()
    places = [cell_of(tmp_path / str(i), spec, change) for i, change in enumerate((0.01, 0.01, 0.02))]
    prints = [weights_fingerprint(find_subject(str(place), *CPU).spec) for place in places]
    assert prints[0] == prints[1] != prints[2]
    assert weights_fingerprint(find_subject("builtin:tiny", *CPU).spec) not in prints


def test_the_checkpoint_of_the_start_is_the_model_that_the_cell_starts_with(tmp_path: Path) -> None:
    path = cell_of(tmp_path / "runs", small_spec(), change=0.0, steps=())
    save_checkpoint(path / "checkpoints", Checkpoint(0, 0, {}, {}, {}))
    of_start = str(path / "checkpoints" / "step-000000")
    start = load_model("builtin:tiny").model.state_dict()
    assert all(torch.equal(weight, start[name]) for name, weight in state(of_start).items())
    save_checkpoint(
        path / "checkpoints", Checkpoint(10, 0, {name: 2 * weight for name, weight in start.items()}, {}, {})
    )
    prints = {weights_fingerprint(find_subject(place, *CPU).spec) for place in (of_start, str(path))}
    assert len(prints) == 2


def test_a_start_that_is_gone_is_named(tmp_path: Path) -> None:
    """Its cold start lies in the home's cache, which `bench clean` empties."""
    cold = {"model.cold_start.type": "sft", "model.cold_start.data": "demonstrations:arithmetic"}
    path = cell_of(tmp_path / "runs", small_spec(cold), change=0.0, steps=())
    save_checkpoint(path / "checkpoints", Checkpoint(0, 0, {}, {}, {}))
    with pytest.raises(RefusedError, match="cache"):
        loaded(find_subject(str(path / "checkpoints" / "step-000000"), *CPU))


def test_adapters_are_put_on_their_start(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    spec = small_spec({"model.lora.type": "lora", "model.lora.rank": 2})
    subject = find_subject(str(cell_of(tmp_path, spec, change=0.01)), *CPU)
    weights = loaded(subject).model.state_dict()
    assert any("lora_B" in name and weight.any() for name, weight in weights.items())
    assert subject.cell == CellRecord.at(tmp_path / "mine" / "cells" / "one-s0-0123456789")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = cell_of(tmp_path, small_spec(), change=0.01)
    (path / "checkpoints" / "step-000010" / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(RefusedError, match=r"step-000010: is damaged \(the checksum of weights.safetensors differs\)"):
        loaded(find_subject(str(path), *CPU))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("nowhere/at/all", "is not a model: there is no such folder or .gguf file"),
        ("path:nowhere", "no config.json in nowhere"),
        ("gguf:none.gguf", "there is no such file"),
        ("builtin:huge", "the only builtin model is builtin:tiny"),
    ],
)
def test_what_is_no_model_is_refused(given: str, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        find_subject(given, *CPU)


def test_a_cell_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cell" / "checkpoints").mkdir(parents=True)
    with refuses(RefusedError, "plan.no_checkpoint_yet", path="cell"):
        find_subject(str(tmp_path / "cell"), *CPU)
