"""Slots: the places where jobs run side by side. A slot is a part of a machine, and the environment in which a process
sees that part alone.

On a GPU a slot is a whole card, a MIG instance, or a share of one of these. Which there are is read from `nvidia-smi`,
or from the driver's files where that is not installed: the planning process never loads torch. Inside a slot a process
sees one GPU, `cuda`, whatever its number is outside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from harness.config.engine import Device
from harness.errors import RefusedError

ONE_THREAD = {
    # Processes are the parallelism: results do not depend on how many there are, nor on the number of cores.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # torch asks for huge pages: a step allocates and frees large tensors, and each small page costs a fault.
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""In the environment of every slot."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARE = "BENCH_GPU_SHARE"
"""The share of its GPU's memory that a process may take; all of it where the variable is not set."""
DRIVER, DEVICES = Path("/proc/driver/nvidia/gpus"), Path("/dev")
_SMI_S = 30.0
_MIB = 2**20
_LISTED = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_LISTED_PART = re.compile(r"\s+MIG (\S+).*\(UUID: (MIG-[^)]+)\)")
_GB_OF_PART = re.compile(r"\.(\d+)gb")
_FIELDS = re.compile(r"^([^:,\n]+)[:,]\s*(.*?)\s*$", re.MULTILINE)
"""A field a line, as `name: value` or `name, value`."""


@dataclass(frozen=True)
class Slot:
    """Where one job runs at a time.

    name: for messages; none for a core of this machine. memory_bytes: of its GPU, all of it; None where unknown, and on
    a CPU. environment: what a process needs besides its own to see this slot alone. share: of the GPU.
    """

    kind: Device
    name: str
    memory_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ONE_THREAD))
    share: float = 1.0

    def shared(self, among: int) -> Slot:
        """One of so many equal shares of it."""
        if self.kind == "cpu" or among == 1:
            return self
        share = 1 / among
        return replace(self, share=share, environment={**self.environment, SHARE: f"{share:.4f}"})


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG instance. id: how `CUDA_VISIBLE_DEVICES` names it; a card by its index in the order of the PCI
    bus, for not every library reads UUIDs there. parts: the MIG instances that a card is split into."""

    id: str
    uuid: str
    name: str
    memory_bytes: int | None = None
    parts: tuple[Gpu, ...] = ()


def local_slots(given: str = "") -> list[Slot]:
    """Those of this machine: a slot for each GPU that this process may use, and one for each core.

    given: what follows the executor's name after a colon. Raises RefusedError for anything.
    """
    if given:
        raise RefusedError(f"--executor: {given!r} follows the name, but this executor takes no address. Leave it out.")
    # Numbers that the user gave mean what they mean to CUDA; ours are those of nvidia-smi.
    order = {} if VISIBLE in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    gpus = [
        Slot("cuda", gpu.name, gpu.memory_bytes, {**ONE_THREAD, **order, VISIBLE: gpu.id}) for gpu in visible_gpus()
    ]
    return [*gpus, *(Slot("cpu", "") for _ in range(os.cpu_count() or 1))]


def slots_of_processes(device: str, count: int, port: int) -> list[Slot]:
    """For the processes of a cell that this process runs: each with a GPU of its own where cells run on one, and with
    torchrun's variables, by which they meet at a port of this machine. Raises RefusedError for too few GPUs."""
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    # This process keeps the store that they meet in.
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    kind: Device = "cpu" if device == "cpu" or (device == "auto" and not gpu_here()) else "cuda"
    there = [Slot("cpu", "")] * count if kind == "cpu" else [slot for slot in local_slots() if slot.kind == kind]
    if len(there) < count:
        raise RefusedError(
            f"train.processes is {count}, and each process takes a GPU, but this cell may use {len(there)}. Use --set "
            f"train.processes={max(1, len(there))}, or fewer cells at once (--workers)."
        )
    return [
        replace(
            slot,
            name=f"process {rank} of the cell's {count}",
            environment={**slot.environment, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, slot in enumerate(there[:count])
    ]


def joined(there: Sequence[Slot], processes: int) -> list[Slot]:
    """Slots for cells of so many processes, each of which takes a GPU, or a core: as many of one kind together."""
    return [slot for kind in ("cuda", "cpu") for slot in _joined([s for s in there if s.kind == kind], processes)]


def _joined(alike: Sequence[Slot], processes: int) -> Iterator[Slot]:
    for start in range(0, len(alike) - processes + 1, processes):
        group = alike[start : start + processes]
        ids = [slot.environment[VISIBLE] for slot in group if VISIBLE in slot.environment]
        environment = {**group[0].environment, **({VISIBLE: ",".join(ids)} if ids else {})}
        yield replace(group[0], name=" and ".join(filter(None, (s.name for s in group))), environment=environment)


def fitting_slots(there: Sequence[Slot], devices: Collection[str]) -> list[Slot]:
    """The slots for jobs whose `train.device` are these. Where any of them needs a GPU, all slots have one; `cuda:N` is
    the Nth, whichever job asks for it."""
    kind = "cuda" if any(device.startswith("cuda") for device in devices) else "cpu"
    of_kind = [slot for slot in there if slot.kind == kind]
    numbers = sorted({int(device.partition(":")[2]) for device in devices if ":" in device})
    return [of_kind[number] for number in numbers if number < len(of_kind)] if numbers else of_kind


def choose_slots(there: Sequence[Slot], devices: Collection[str], count: int) -> list[Slot]:
    """The slots for so many jobs at once; each GPU has one job before any has two, which then have a share of it each.

    Raises RefusedError where no slot fits.
    """
    fitting = fitting_slots(there, devices)
    if not fitting:
        gpus = sum(slot.kind == "cuda" for slot in there)
        raise RefusedError(
            f"train.device is {' and '.join(sorted(devices))}, but the executor can run cells on {gpus} GPUs and "
            f"{len(there) - gpus} CPU cores. Set train.device to what there is (GPUs are numbered from 0), or choose "
            "another executor (`bench ls executors`)."
        )
    on_each = [count // len(fitting) + (place < count % len(fitting)) for place in range(len(fitting))]
    return [fitting[n % len(fitting)].shared(on_each[n % len(fitting)]) for n in range(count)]


def gpu_here() -> bool:
    """Whether this process may use a GPU."""
    return bool(visible_gpus())


def gpu_share() -> float:
    """The share of its GPU's memory that this process may take."""
    return float(os.environ.get(SHARE, 1))


def show_only(device: str) -> str:
    """Hide all GPUs from this process but the one that `cuda:N` names, so that every library takes that one; returns
    its name from now on, `cuda`. Other devices stay as they are. Call before torch looks for GPUs.

    Raises RefusedError if there is no such GPU.
    """
    if ":" not in device:
        return device
    (slot,) = choose_slots(local_slots(), {device}, 1)
    os.environ.update({name: slot.environment[name] for name in slot.environment if name.startswith("CUDA_")})
    return slot.kind


def visible_gpus() -> list[Gpu]:
    """Those that `CUDA_VISIBLE_DEVICES` leaves, in its order and by CUDA's rules: what follows an entry that names no
    GPU is not seen. A card that is split has its MIG instances in its place."""
    there = _installed_gpus()
    given = os.environ.get(VISIBLE)
    chosen = there if given is None else [*_named(given.split(","), there)]
    return [part for gpu in chosen for part in (gpu.parts or (gpu,))]


def _named(entries: Iterable[str], there: Sequence[Gpu]) -> Iterator[Gpu]:
    known = [one for gpu in there for one in (gpu, *gpu.parts)]
    for entry in map(str.strip, entries):
        is_uuid = entry.startswith(("GPU-", "MIG-"))
        found = [gpu for gpu in known if (gpu.uuid.startswith(entry) if is_uuid else gpu.id == entry)]
        if not found:
            return
        yield found[0]


def _installed_gpus() -> list[Gpu]:
    listed = _asked("-L")
    if listed is None:
        return _of_driver()
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
            gb = _GB_OF_PART.search(profile)
            size = int(gb[1]) * 10**9 if gb else None
            whole = cards[-1]
            one = Gpu(uuid, uuid, f"MIG {profile} {len(whole.parts)} of {whole.name}", size)
            cards[-1] = replace(whole, parts=(*whole.parts, one))
    return cards


@cache
def _asked(*arguments: str) -> str | None:
    """What nvidia-smi says; None without one, or where it finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        told = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_SMI_S)
    except subprocess.TimeoutExpired:
        raise RefusedError(
            f"nvidia-smi {' '.join(arguments)} has not answered within {_SMI_S:.0f} s: a GPU may hang. Set "
            f"{VISIBLE}= (empty) to run on the CPU."
        ) from None
    return told.stdout if told.returncode == 0 else None


def _of_driver() -> list[Gpu]:
    """The cards that the driver knows and this process has a device file of, which in a container need not be all."""
    found = [dict(_FIELDS.findall(path.read_text())) for path in sorted(DRIVER.glob("*/information"))]
    open_to_us = [card for card in found if (DEVICES / f"nvidia{card.get('Device Minor', '')}").exists()]
    return [
        Gpu(str(index), card.get("GPU UUID", f"GPU {index}"), f"GPU {index}") for index, card in enumerate(open_to_us)
    ]
