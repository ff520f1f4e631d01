from __future__ import annotations

import errno
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import pytest
import torch
from transformers import PreTrainedModel

from harness.records.files import read_json, write_json
from harness.training import checkpoint
from harness.training.checkpoint import (
    FORMAT,
    Checkpoint,
    UnusableCheckpointError,
    all_finite,
    checkpoint_folders,
    load_latest,
    load_trained_weights,
    save_checkpoint,
    trained_weights,
)
from harness.training.states import TrainerState
from tests.cuda.device import ROOT
from tests.harness.training import rollouts
from tests.refusals import refuses


def made(step: int) -> Checkpoint:
    """A checkpoint with tied weights and a used optimiser."""
    model = rollouts.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * step)
    sum((weight**3).sum() for weight in model.parameters()).backward()
    optimizer.step()
    state = optimizer.state_dict()
    trainer: TrainerState = {
        "optimizer": {"state": state["state"], "param_groups": state["param_groups"]},
        "coefficients": {"kl": 0.1},
    }
    return Checkpoint(step, 100 * step, dict(model.state_dict()), trainer, {"teacher_tokens": step})


def assert_same(one: Checkpoint | None, other: Checkpoint) -> None:
    assert one is not None
    assert (one.step, one.generated_tokens, one.progress) == (other.step, other.generated_tokens, other.progress)
    assert one.trainer["coefficients"] == other.trainer["coefficients"]
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(one.weights[name], weight) for name, weight in other.weights.items())
    assert one.trainer["optimizer"]["param_groups"] == other.trainer["optimizer"]["param_groups"]
    assert one.trainer["optimizer"]["state"].keys() == other.trainer["optimizer"]["state"].keys()
    for index, state in other.trainer["optimizer"]["state"].items():
        assert all(torch.equal(one.trainer["optimizer"]["state"][index][name], value) for name, value in state.items())


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoint_folders(folder)]


def test_round_trip_is_exact(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, made(3))
    assert_same(load_latest(tmp_path), made(3))


def test_none_without_any(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "checkpoints") is None


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (0, 9, 10, 100):
        save_checkpoint(tmp_path, made(step))
    assert names(tmp_path) == ["step-000010", "step-000100"]
    assert_same(load_latest(tmp_path), made(100))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, made(5))
    (tmp_path / "step-000005" / "weights.safetensors").write_bytes(b"damaged")
    save_checkpoint(tmp_path, made(5))
    assert_same(load_latest(tmp_path), made(5))


@pytest.mark.parametrize("file", ["weights.safetensors", "trainer.pt", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["one bit", "cut", "missing"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, file: str, damage: str) -> None:
    save_checkpoint(tmp_path, made(1))
    save_checkpoint(tmp_path, made(2))
    path = tmp_path / "step-000002" / file
    content = path.read_bytes()
    match damage:
        case "one bit":
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 128]) + content[middle + 1 :])
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "missing":
            path.unlink()
    assert_same(load_latest(tmp_path), made(1))


@pytest.mark.parametrize("format", [FORMAT - 1, FORMAT + 1, None])
def test_one_of_another_format_is_passed_over(tmp_path: Path, format: int | None) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, made(step))
    meta = checkpoint_folders(tmp_path)[-1] / "checkpoint.json"
    write_json(meta, read_json(meta) | {"format": format})
    assert_same(load_latest(tmp_path), made(1))


def test_if_all_are_damaged_the_newest_is_named_with_the_remedy(tmp_path: Path) -> None:
    """It may be restored: nothing is thrown away before somebody has looked."""
    save_checkpoint(tmp_path, made(1))
    save_checkpoint(tmp_path, made(2))
    for step in (1, 2):
        (tmp_path / f"step-{step:06d}" / "trainer.pt").unlink()
    with refuses(UnusableCheckpointError, "training.checkpoint_damaged", path="step-000002"):
        load_latest(tmp_path)


def refused_pickle(path: Path) -> None:
    torch.save({"a": threading.Thread}, path / "trainer.pt")
    written_anew(path, lambda meta: meta | {"xxh3_128": sums(path)})


def written_anew(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """checkpoint.json changed, with a digest that fits."""
    meta = read_json(path / "checkpoint.json")
    del meta["digest"]
    changed = change(meta)
    write_json(path / "checkpoint.json", changed | {"digest": checkpoint._digest(changed)})


def sums(path: Path) -> dict[str, str]:
    return {name: checkpoint._checksum(path / name) for name in ("weights.safetensors", "trainer.pt")}


def emptied(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.mkdir()


FOREIGN: dict[str, Callable[[Path], None]] = {
    "a pickle that is refused": refused_pickle,
    "without its step": lambda path: written_anew(path, lambda meta: {k: v for k, v in meta.items() if k != "step"}),
    "of another step": lambda path: written_anew(path, lambda meta: meta | {"step": 7}),
    "without checksums": lambda path: written_anew(path, lambda meta: meta | {"xxh3_128": {}}),
    "checksums that are none": lambda path: written_anew(path, lambda meta: meta | {"xxh3_128": 3}),
    "no JSON object": lambda path: write_json(path / "checkpoint.json", [1]),
    "somebody's JSON": lambda path: write_json(path / "checkpoint.json", {"model": "mine"}),
    "an empty folder": emptied,
    "a folder in the place of a file": lambda path: emptied(path / "trainer.pt"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_one_is_passed_over_and_named(tmp_path: Path, kind: str) -> None:
    save_checkpoint(tmp_path, made(1))
    save_checkpoint(tmp_path, made(2))
    FOREIGN[kind](tmp_path / "step-000002")
    said: list[str] = []
    assert_same(load_latest(tmp_path, passed_over=said.append), made(1))
    assert len(said) == 1 and "step-000002: is damaged (" in said[0]
    shutil.rmtree(tmp_path / "step-000001")
    with pytest.raises(UnusableCheckpointError):
        load_latest(tmp_path)


def test_a_stray_folder_is_no_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, made(1))
    (tmp_path / "step-of-mine").mkdir()
    assert_same(load_latest(tmp_path), made(1))
    save_checkpoint(tmp_path, made(2))
    assert (tmp_path / "step-of-mine").is_dir()


def test_what_a_kill_leaves_aside_is_no_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, made(1))
    torn = tmp_path / ".step-000002.4711.tmp"
    torn.mkdir()
    (torn / "weights.safetensors").write_bytes(b"half")
    assert_same(load_latest(tmp_path), made(1))


def test_an_error_of_a_write_is_not_hidden_by_one_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full takes less than a tensor and then, perhaps, the end of the file."""
    sizes: list[int] = []

    def write(content: bytes) -> int:
        sizes.append(len(content))
        if len(sizes) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(content)

    with pytest.raises(OSError, match="No space left"), checkpoint._Checked(tmp_path / "trainer.pt") as file:
        monkeypatch.setattr(file, "_file", SimpleNamespace(write=write, flush=lambda: None, close=lambda: None))
        torch.save({"a": torch.zeros(3000)}, cast(BinaryIO, file))


@pytest.mark.parametrize("file", ["weights.safetensors", "trainer.pt"])
def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, file: str) -> None:
    """The system refuses to let a file grow, as a full disk does."""
    save_checkpoint(tmp_path, made(1))
    size = (tmp_path / "step-000001" / file).stat().st_size
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            save_checkpoint(tmp_path, made(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert_same(load_latest(tmp_path), made(1))


def test_the_checkpoint_is_a_copy(tmp_path: Path) -> None:
    """Weights that go on training after the save do not change what was saved."""
    saved = made(1)
    save_checkpoint(tmp_path, saved)
    for weight in saved.weights.values():
        weight.zero_()
    assert_same(load_latest(tmp_path), made(1))


def test_that_of_the_start_holds_no_tensors(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Checkpoint(0, 0, {}, {}, {"teacher_tokens": 3}, epoch=1))
    assert [path.name for path in (tmp_path / "step-000000").iterdir()] == ["checkpoint.json"]
    start = load_latest(tmp_path)
    assert start is not None and start.is_start and start.progress == {"teacher_tokens": 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinite_weights_are_found_however_large_the_others_are(dtype: torch.dtype) -> None:
    large = [torch.full((3, 4), 3e38, dtype=dtype), torch.tensor([-1.0, 2.0]), torch.arange(3)]
    assert all_finite(large)
    for wrong in (torch.nan, torch.inf, -torch.inf):
        large[1][0] = wrong
        assert not all_finite(large)


STAGED = """
import torch
from tests.cuda import device
device.install()
from harness.training import tensors
tensors.STAGING_BYTES = 1000
torch.manual_seed(0)
sizes = [(3,), (7, 5), (1,), (600,), (2, 2)]
kept = [torch.randn(size).to(dtype) for size in sizes for dtype in (torch.float32, torch.bfloat16)]
state = {"lists": [tensor.to("cuda") for tensor in kept], "betas": (0.9, 0.95), "step": torch.tensor(3.0)}
device.ledger.waits.clear()
moved = tensors.on_host(state)
assert moved["betas"] == (0.9, 0.95) and moved["step"] is state["step"]
for got, expected in zip(moved["lists"], kept, strict=True):
    assert not got.is_cuda and torch.equal(got, expected)
print(device.ledger.waits.total(), sum(tensor.nbytes for tensor in kept))
"""


@pytest.mark.slow
def test_tensors_of_a_gpu_pass_through_a_pinned_buffer() -> None:
    done = subprocess.run([sys.executable, "-c", STAGED], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    waits, total_bytes = map(int, done.stdout.split())
    assert total_bytes / 1000 <= waits <= total_bytes / 1000 + 4


class TestTheTrainedWeights:
    def model(self) -> PreTrainedModel:
        """Tied, as `rollouts.model` is, with one layer that is not trained."""
        model = rollouts.model()
        model.get_submodule("model.layers.0").requires_grad_(False)
        return model

    def test_of_a_model_that_is_trained_whole_are_all(self) -> None:
        model = rollouts.model()
        assert trained_weights(model).keys() == model.state_dict().keys()

    def test_are_those_that_take_gradients(self) -> None:
        model = self.model()
        left_out = model.state_dict().keys() - trained_weights(model).keys()
        assert left_out == {name for name in model.state_dict() if name.startswith("model.layers.0.")}

    def test_come_back(self) -> None:
        saved = {name: weight.clone() for name, weight in trained_weights(self.model()).items()}
        other = self.model()
        with torch.no_grad():
            for weight in other.parameters():
                weight.mul_(2 if weight.requires_grad else 1)
        load_trained_weights(other, saved)
        assert all(torch.equal(weight, other.state_dict()[name]) for name, weight in self.model().state_dict().items())

    def test_of_another_model_are_refused(self) -> None:
        saved = trained_weights(self.model())
        with pytest.raises(RuntimeError, match=r"of another model: model\.layers\.0"):
            load_trained_weights(rollouts.model(), saved)
        with pytest.raises(RuntimeError, match="of another model: stranger"):
            load_trained_weights(self.model(), saved | {"stranger": torch.zeros(1)})
