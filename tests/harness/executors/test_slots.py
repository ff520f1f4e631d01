"""Which slots there are, beside a pretended nvidia-smi, and what a process sees in one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.rollout import RolloutSpec
from harness.engines.vllm import VLLM
from harness.errors import RefusedError
from harness.executors import slots
from harness.executors.base import Job, best_place
from harness.executors.slots import (
    SHARE,
    VISIBLE,
    Slot,
    choose_slots,
    fitting_slots,
    gpu_here,
    joined,
    local_slots,
    show_only,
    slots_of_processes,
    visible_gpus,
)
from tests.harness.run.small import small_spec
from tests.refusals import refuses

LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c89852c-0000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77aa0000-1111)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4)
  MIG 3g.20gb     Device  1: (UUID: MIG-9d0e2a01-77b1)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-5c89ffff-2222)
"""
MIB = {"GPU-5c89852c-0000": 81559, "GPU-77aa0000-1111": 40960, "GPU-5c89ffff-2222": 81559}


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, listed: str, code: int = 0) -> None:
    """An nvidia-smi that lists this."""
    (folder / "listed").write_text(listed)
    (folder / "sizes").write_text("".join(f"{uuid}, {size}\n" for uuid, size in MIB.items() if uuid in listed))
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -L ] && cat {folder}/listed || cat {folder}/sizes\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    slots._asked.cache_clear()


@pytest.fixture(autouse=True)
def no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Those of the machine do not count."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.delenv(SHARE, raising=False)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr(slots, "DRIVER", tmp_path / "driver")
    monkeypatch.setattr(slots, "DEVICES", tmp_path / "dev")
    slots._asked.cache_clear()
    yield
    slots._asked.cache_clear()


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, LISTED)


def of_gpus() -> list[Slot]:
    return [slot for slot in local_slots() if slot.kind == "cuda"]


def test_without_a_gpu_there_is_a_slot_for_each_core() -> None:
    assert not gpu_here()
    assert [slot.kind for slot in local_slots()] == ["cpu"] * (os.cpu_count() or 1)


def test_each_card_and_each_mig_instance_is_a_slot_of_its_own(smi: None) -> None:
    found = of_gpus()
    assert [slot.environment[VISIBLE] for slot in found] == ["0", "MIG-c6d4f1ef-42e4", "MIG-9d0e2a01-77b1", "2"]
    assert len({slot.name for slot in found}) == 4
    assert [slot.memory_bytes for slot in found] == [81559 * 2**20, 5 * 10**9, 20 * 10**9, 81559 * 2**20]
    assert {slot.environment["CUDA_DEVICE_ORDER"] for slot in found} == {"PCI_BUS_ID"}, "as nvidia-smi numbers them"
    assert {slot.environment["OMP_NUM_THREADS"] for slot in local_slots()} == {"1"}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("2,0", ["2", "0"]),
        ("", []),
        ("-1", []),
        ("0,7,2", ["0"]),
        (" 0 , 2 ", ["0", "2"]),
        ("1", ["MIG-c6d4f1ef-42e4", "MIG-9d0e2a01-77b1"]),
        ("MIG-9d0e2a01-77b1", ["MIG-9d0e2a01-77b1"]),
        ("GPU-5c89f,GPU-5c898", ["2", "0"]),
        ("nonsense", []),
    ],
)
def test_what_the_user_hides_stays_hidden(smi: None, monkeypatch: pytest.MonkeyPatch, given: str, seen: Any) -> None:
    monkeypatch.setenv(VISIBLE, given)
    assert [slot.environment[VISIBLE] for slot in of_gpus()] == seen
    assert gpu_here() == bool(seen)
    assert all("CUDA_DEVICE_ORDER" not in slot.environment for slot in of_gpus()), "numbers mean what they meant"


def test_without_nvidia_smi_the_driver_is_asked(tmp_path: Path) -> None:
    """A container may see the files of all cards, but not their devices."""
    for bus, minor in (("0000:01", 0), ("0000:02", 1), ("0000:03", 2)):
        (tmp_path / "driver" / bus).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{minor}abc\nDevice Minor: \t {minor}\n"
        (tmp_path / "driver" / bus / "information").write_text(text)
    (tmp_path / "dev").mkdir()
    for minor in (1, 2):
        (tmp_path / "dev" / f"nvidia{minor}").touch()
    assert [(gpu.id, gpu.uuid) for gpu in visible_gpus()] == [("0", "GPU-1abc"), ("1", "GPU-2abc")]


def test_an_nvidia_smi_without_a_driver_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, "NVIDIA-SMI has failed because it couldn't communicate with the driver", code=9)
    assert visible_gpus() == []


def test_an_nvidia_smi_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, "")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slots, "_SMI_S", 0.1)
    with refuses(RefusedError, "executors.nvidia_smi_not_answering", arguments="-L", variable="CUDA_VISIBLE_DEVICES"):
        local_slots()
    monkeypatch.setenv(VISIBLE, "")
    assert {slot.kind for slot in local_slots()} == {"cpu"}, "the remedy works"


GPUS = [Slot("cuda", f"GPU {n}", environment={VISIBLE: str(n)}) for n in range(3)]
CORES = [Slot("cpu", "")] * 4


@given(st.integers(1, 20))
def test_cards_are_shared_evenly_and_only_where_there_are_too_few(count: int) -> None:
    chosen = choose_slots([*GPUS, *CORES], {"cuda"}, count)
    on_each = Counter(slot.environment[VISIBLE] for slot in chosen)
    assert sum(on_each.values()) == count
    assert len(on_each) == min(count, 3)
    assert max(on_each.values()) - min(on_each.values()) <= 1
    for slot in chosen:
        assert slot.share == pytest.approx(1 / on_each[slot.environment[VISIBLE]])
        assert float(slot.environment.get(SHARE, 1)) == pytest.approx(slot.share, abs=1e-4)


def test_cells_take_the_kind_of_slot_that_they_need() -> None:
    there = [*GPUS, *CORES]
    assert choose_slots(there, {"cpu"}, 6) == CORES[:1] * 6, "on a CPU there is nothing to share"
    assert choose_slots(there, {"cpu", "cuda"}, 3) == GPUS
    assert fitting_slots(there, {"cuda:2", "cuda:0"}) == [GPUS[0], GPUS[2]]
    assert len(fitting_slots(there, {"cuda"})) == 3


@pytest.mark.parametrize(("there", "device"), [(CORES, "cuda"), (GPUS, "cuda:3"), (GPUS, "cpu")])
def test_a_kind_of_slot_that_is_not_there_is_refused(there: list[Slot], device: str) -> None:
    with refuses(RefusedError, "executors.device_not_in_executor", devices=device):
        choose_slots(there, {device}, 1)


def test_a_cell_of_several_processes_takes_as_many_cards_or_cores() -> None:
    pairs = joined([*GPUS, *CORES], 2)
    assert [slot.kind for slot in pairs] == ["cuda", "cpu", "cpu"], "the third card is left over"
    assert pairs[0].environment[VISIBLE] == "0,1"
    assert joined([*GPUS, *CORES], 1) == [*GPUS, *CORES]


def test_the_processes_of_a_cell_are_on_one_machine() -> None:
    there = [Slot("cuda", f"a GPU of {host}", machine=host) for host in ("one", "two", "two")]
    (pair,) = joined(there, 2)
    assert (pair.machine, pair.processes) == ("two", 2)
    assert choose_slots(there, {"cuda"}, 1, processes=2) == [pair]
    with refuses(RefusedError, "executors.machines_too_small", unit="GPU", most=2):
        choose_slots(there, {"cuda"}, 1, processes=3)
    with refuses(RefusedError, "executors.machines_too_small", n_processes=5, unit="core"):
        choose_slots([*GPUS, *CORES], {"cpu"}, 1, processes=5)


def test_a_worker_belongs_to_no_group_but_that_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training job of Kubernetes or torchrun may have started bench in a group of its own."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "elsewhere", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    alone = Slot("cpu", "").worker_environment()
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"} & set(alone)
    assert alone["PATH"] == os.environ["PATH"]
    first, second = (slot.worker_environment() for slot in slots_of_processes("cpu", 2, 2323))
    assert [(one["RANK"], one["WORLD_SIZE"], one["MASTER_ADDR"]) for one in (first, second)] == [
        ("0", "2", "127.0.0.1"),
        ("1", "2", "127.0.0.1"),
    ]


def test_each_process_of_a_cell_sees_its_own_card(smi: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,2")
    slots = slots_of_processes("cuda", 2, 2323)
    assert [slot.environment[VISIBLE] for slot in slots] == ["0", "2"]
    assert [slot.environment["RANK"] for slot in slots] == ["0", "1"]
    with refuses(RefusedError, "executors.too_few_gpus", n_processes=3, n_gpus=2, most=2):
        slots_of_processes("cuda", 3, 2323)
    assert {slot.kind for slot in slots_of_processes("cpu", 3, 2323)} == {"cpu"}


def test_a_process_shows_itself_the_card_that_it_names(smi: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So vLLM, which takes the first card that it sees, takes this one."""
    monkeypatch.setenv(VISIBLE, "2,0")
    assert show_only("cuda:1") == "cuda"
    assert os.environ[VISIBLE] == "0"
    assert [show_only(device) for device in ("cuda", "cpu", "auto")] == ["cuda", "cpu", "auto"]
    assert os.environ[VISIBLE] == "0"
    assert VLLM.refusal(RolloutSpec(max_completion_tokens=8), "cuda:1") is None


def test_in_a_slot_a_job_sees_one_gpu() -> None:
    job = Job("cell", "a", small_spec({"train.device": "cuda:1"}))
    assert job.in_slot().spec.train.device == "cuda"
    assert Job("cell", "a", small_spec()).in_slot().spec == small_spec()


def test_vllm_takes_its_part_of_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("harness.engines.vllm.engine.VllmEngine", lambda *given: made.append(given[-1]))
    monkeypatch.setenv(SHARE, "0.5")
    model: Any = type("Model", (), {"pad_token_id": 0, "eos_token_ids": [0], "decode": None})
    VLLM.make(model, None, RolloutSpec(max_completion_tokens=8, vllm_memory_frac=0.4))
    assert made == [pytest.approx(0.2)]


class Place:
    def __init__(self, model: str | None) -> None:
        self.model = model


def test_a_job_goes_where_its_model_is_loaded() -> None:
    job = Job("cell", "a", small_spec())
    has_it, has_another, is_new = Place(job.model), Place("another"), Place(None)
    assert best_place(job, [has_another, is_new, has_it]) is has_it
    assert best_place(job, [has_another, is_new]) is is_new, "rather than to drop a model that another job may need"
    assert best_place(job, [has_another]) is has_another
    adapted = Job("cell", "b", small_spec({"model.lora": {"type": "lora", "rank": 4}}))
    assert adapted.model == job.model, "adapters are put on what is loaded"
