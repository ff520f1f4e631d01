"""Slots: the places where jobs run in parallel.

A slot is a part of a machine, with environment variables that make only that part visible to a process. A GPU slot is a
complete card, a MIG instance, or a share of one of these. GPUs are listed with `nvidia-smi`, or from the driver's files
if it is not installed, because the planning process never loads torch. Inside a slot, a process sees one GPU, `cuda`,
whatever its index outside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from harness.config.engine import Device
from harness.errors import RefusedError

ONE_THREAD = {
    # Each process has one thread, so that results depend neither on the number of processes nor on that of cores.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # torch uses huge pages, because a step allocates and frees large tensors, and each small page costs a page fault.
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""The environment variables of every slot."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
SHARE = "BENCH_GPU_SHARE"
"""The share of its GPU's memory that a process may take. If the variable is not set, the process may take all of it."""
_OF_A_GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", _AGENT_STORE)
"""Variables by which torchrun, or a Kubernetes job, tells a process about its process group."""
DRIVER, DEVICES = Path("/proc/driver/nvidia/gpus"), Path("/dev")
_SMI_S = 30.0
"""The longest time to wait for an answer from nvidia-smi."""
_MIB = 2**20
_LISTED = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_LISTED_PART = re.compile(r"\s+MIG (\S+).*\(UUID: (MIG-[^)]+)\)")
_GB_OF_PART = re.compile(r"\.(\d+)gb")
_FIELDS = re.compile(r"^([^:,\n]+)[:,]\s*(.*?)\s*$", re.MULTILINE)
"""Matches one field per line, as `name: value` or `name, value`."""


@dataclass(frozen=True)
class Slot:
    """A place in which one job runs at a time."""

    kind: Device
    name: str
    """The name in messages; "" for a core of this machine."""
    memory_bytes: int | None = None
    """The total memory of its GPU; None if unknown, and on a CPU."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ONE_THREAD))
    """The variables to add so that a process sees only this slot."""
    share: float = 1.0
    """The fraction of the GPU that belongs to the slot."""
    machine: str = ""
    """An id of the machine, if there are several machines."""
    processes: int = 1
    """The number of processes that train a cell in this slot, each on its own GPU or core."""

    def worker_environment(self) -> dict[str, str]:
        """Return the environment of a worker process in this slot.

        Variables of a process group that this process may belong to are removed. Only a slot may make a worker one of
        several processes of a cell.
        """
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_A_GROUP}
        return {**inherited, **self.environment}

    def shared(self, among: int) -> Slot:
        if self.kind == "cpu" or among == 1:
            return self
        share = 1 / among
        return replace(self, share=share, environment={**self.environment, SHARE: f"{share:.4f}"})


@dataclass(frozen=True)
class Gpu:
    id: str
    """The GPU's name in `CUDA_VISIBLE_DEVICES`. For a card, this is its index in PCI bus order, because not every
    library accepts UUIDs there.
    """
    uuid: str
    name: str
    memory_bytes: int | None = None
    parts: tuple[Gpu, ...] = ()


def local_slots(given: str = "") -> list[Slot]:
    """Return the slots of this machine: one for each GPU that this process may use, and one for each core.

    given: the text after the executor's name and a colon; it must be empty. Raises RefusedError.
    """
    if given:
        raise RefusedError("executors.address_not_taken", address=given)
    # Indices that the user has set are in CUDA's order. Those set here are in the order of nvidia-smi.
    order = {} if VISIBLE in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    gpus = [
        Slot("cuda", gpu.name, gpu.memory_bytes, {**ONE_THREAD, **order, VISIBLE: gpu.id}) for gpu in visible_gpus()
    ]
    return [*gpus, *(Slot("cpu", "") for _ in range(os.cpu_count() or 1))]


def slots_of_processes(device: str, count: int, port: int) -> list[Slot]:
    """Return slots for the processes of one cell. If cells run on GPUs, each process gets its own GPU.

    The environment variables are those of torchrun, by which the processes meet at a port of this machine. Raises
    RefusedError if there are too few GPUs.
    """
    # This process hosts the store at which the others meet. LOCAL_RANK is not set, because each process sees only one
    # GPU.
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), _AGENT_STORE: "True"}
    kind: Device = "cpu" if device == "cpu" or (device == "auto" and not gpu_here()) else "cuda"
    there = [Slot("cpu", "")] * count if kind == "cpu" else [slot for slot in local_slots() if slot.kind == kind]
    if len(there) < count:
        raise RefusedError("executors.too_few_gpus", n_processes=count, n_gpus=len(there), most=max(1, len(there)))
    return [
        replace(
            slot,
            name=f"process {rank} of the cell's {count}",
            environment={**slot.environment, **common, "RANK": str(rank)},
        )
        for rank, slot in enumerate(there[:count])
    ]


def joined(there: Sequence[Slot], processes: int) -> list[Slot]:
    """Return slots for cells of several processes. Each combines `processes` GPUs, or cores, of one machine."""
    alike: dict[tuple[Device, str], list[Slot]] = {}
    for slot in there:
        alike.setdefault((slot.kind, slot.machine), []).append(slot)
    return [slot for group in alike.values() for slot in _joined(group, processes)]


def _joined(alike: Sequence[Slot], processes: int) -> Iterator[Slot]:
    for start in range(0, len(alike) - processes + 1, processes):
        group = alike[start : start + processes]
        ids = [slot.environment[VISIBLE] for slot in group if VISIBLE in slot.environment]
        environment = {**group[0].environment, **({VISIBLE: ",".join(ids)} if ids else {})}
        name = " and ".join(filter(None, (slot.name for slot in group)))
        yield replace(group[0], name=name, environment=environment, processes=processes)


def fitting_slots(there: Sequence[Slot], devices: Collection[str]) -> list[Slot]:
    """Return the slots that are suitable for jobs with these values of `train.device`.

    If any job needs a GPU, all slots have one. `cuda:N` stands for the Nth GPU for all jobs.
    """
    kind = "cuda" if any(device.startswith("cuda") for device in devices) else "cpu"
    of_kind = [slot for slot in there if slot.kind == kind]
    numbers = sorted({int(device.partition(":")[2]) for device in devices if ":" in device})
    return [of_kind[number] for number in numbers if number < len(of_kind)] if numbers else of_kind


def choose_slots(there: Sequence[Slot], devices: Collection[str], count: int, processes: int = 1) -> list[Slot]:
    """Return slots for `count` jobs at once, each with this number of processes.

    Every GPU gets a first job before any gets a second. Jobs on one GPU share it equally. Raises RefusedError if no
    slot is suitable.
    """
    fitting = fitting_slots(joined(there, processes), devices)
    if not fitting and (alone := fitting_slots(there, devices)):
        most = max(Counter(slot.machine for slot in alone).values())
        what = "GPU" if alone[0].kind == "cuda" else "core"
        raise RefusedError("executors.machines_too_small", n_processes=processes, unit=what, most=most)
    if not fitting:
        gpus = sum(slot.kind == "cuda" for slot in there)
        raise RefusedError(
            "executors.device_not_in_executor",
            devices=" and ".join(sorted(devices)),
            n_gpus=gpus,
            n_cores=len(there) - gpus,
        )
    # A GPU's share depends on the number of its jobs. If `count` is not a multiple, the first GPUs get one job more.
    on_each = [count // len(fitting) + (place < count % len(fitting)) for place in range(len(fitting))]
    return [fitting[n % len(fitting)].shared(on_each[n % len(fitting)]) for n in range(count)]


def gpu_here() -> bool:
    return bool(visible_gpus())


def gpu_share() -> float:
    """Return the share of its GPU's memory that this process may take."""
    return float(os.environ.get(SHARE, 1))


def show_only(device: str) -> str:
    """Hide all GPUs from this process except the one that `cuda:N` names, so that every library uses it.

    Returns its new name, `cuda`. Any other device is returned unchanged. Call this before torch looks for GPUs. Raises
    RefusedError if there is no such GPU.
    """
    if ":" not in device:
        return device
    (slot,) = choose_slots(local_slots(), {device}, 1)
    os.environ.update({name: slot.environment[name] for name in slot.environment if name.startswith("CUDA_")})
    return slot.kind


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` selects, in its order.

    As in CUDA, an entry that does not name a GPU also hides all later entries. A card that is split is replaced by its
    MIG instances.
    """
    given = os.environ.get(VISIBLE)
    # An empty variable is the remedy for an nvidia-smi that hangs, so nvidia-smi is not called in that case.
    there = [] if given == "" else _installed_gpus()
    chosen = there if given is None else [*_named(given.split(","), there)]
    return [part for gpu in chosen for part in (gpu.parts or (gpu,))]


def _named(entries: Iterable[str], there: Sequence[Gpu]) -> Iterator[Gpu]:
    """Yield the GPUs that entries of `CUDA_VISIBLE_DEVICES` name, up to the first entry that does not name a GPU."""
    known = [one for gpu in there for one in (gpu, *gpu.parts)]
    for entry in map(str.strip, entries):
        is_uuid = entry.startswith(("GPU-", "MIG-"))
        # CUDA also accepts the beginning of a UUID.
        found = [gpu for gpu in known if (gpu.uuid.startswith(entry) if is_uuid else gpu.id == entry)]
        if not found:
            return
        yield found[0]


def _installed_gpus() -> list[Gpu]:
    """Return the GPUs that nvidia-smi lists or, if it is not installed, those in the driver's files."""
    listed = _asked("-L")
    if listed is None:
        return _of_driver()
    # `-L` lists MIG instances without their memory. The query gives the memory of complete cards.
    asked = _asked("--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits") or ""
    sizes = dict(_FIELDS.findall(asked))
    cards: list[Gpu] = []
    for line in listed.splitlines():
        if card := _LISTED.match(line):
            index, uuid = card.groups()
            size = int(sizes[uuid]) * _MIB if uuid in sizes else None
            cards.append(Gpu(index, uuid, f"GPU {index}", size))
        elif (part := _LISTED_PART.match(line)) and cards:
            profile, uuid = part.groups()
            # The name of a profile, such as 3g.40gb, contains the memory of its instance.
            gb = _GB_OF_PART.search(profile)
            size = int(gb[1]) * 10**9 if gb else None
            whole = cards[-1]
            one = Gpu(uuid, uuid, f"MIG {profile} {len(whole.parts)} of {whole.name}", size)
            cards[-1] = replace(whole, parts=(*whole.parts, one))
    return cards


@cache
def _asked(*arguments: str) -> str | None:
    """Return the output of nvidia-smi, or None if it is not installed or finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        told = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_SMI_S)
    except subprocess.TimeoutExpired:
        raise RefusedError(
            "executors.nvidia_smi_not_answering", arguments=" ".join(arguments), timeout_s=_SMI_S, variable=VISIBLE
        ) from None
    return told.stdout if told.returncode == 0 else None


def _of_driver() -> list[Gpu]:
    """Return the driver's cards for which this process has a device file. In a container, some may have none."""
    found = [dict(_FIELDS.findall(path.read_text())) for path in sorted(DRIVER.glob("*/information"))]
    open_to_us = [card for card in found if (DEVICES / f"nvidia{card.get('Device Minor', '')}").exists()]
    return [
        Gpu(str(index), card.get("GPU UUID", f"GPU {index}"), f"GPU {index}") for index, card in enumerate(open_to_us)
    ]
