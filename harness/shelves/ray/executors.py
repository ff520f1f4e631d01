"""The executor for a Ray cluster: one actor per slot, on any machine with room.

Each actor keeps one worker process, as `harness.executors.local` does, so jobs run in the same way everywhere. Ray
starts the actors, assigns their GPUs and carries messages. Its retries are off: this module replaces a lost actor, and
`harness.run.loop` starts its job again, from its last checkpoint.

If an actor sees the home under the same path as the head, it writes the records there. Otherwise it has a private home.
The head sends it what the job reads, and copies the job's folder back at the end. Earlier copies are made now and
then, so that a lost machine costs little and the records on the head show the progress.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness import plugins
from harness.config.engine import Device
from harness.config.hashing import NUMERICS_VERSION, user_code
from harness.errors import BenchError, RefusedError
from harness.executors.base import Ended, Event, ExecutorKind, Job, Progress, best_place
from harness.executors.local import STOP_WITHIN_S
from harness.executors.slots import Slot
from harness.records import CellRecord
from harness.records.fence import LeaseLostError
from harness.records.lease import Lease, LeaseTakenError, hold_lease
from harness.shelves.ray.slot_actor import CHUNK_BYTES, CODE, About, SlotActor, pack, unpack_into, unpack_whole

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle, ActorMethod

# Read when ray is imported: send no usage statistics, and give up on an address after a few seconds.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_NUM_REDIS_GET_RETRIES": "5"}
CONNECT_S = 5.0
ANSWER_S = 1.0
FIRST_SLOT_WITHIN_S = 300.0
"""The longest wait of a run for its first slot, while others use the cluster."""
NO_SLOT_FOR_S = 600.0
"""The longest wait of a run without any slot, since lost machines may be replaced."""
KEEP_EVERY_S = 60.0
KEEP_AT_MOST_FRAC = 0.05
"""The largest share of a cell's time that may go into copying its folder back before its end."""


@dataclass(eq=False)
class _Place:
    """An actor, seen from the head."""

    slot: Slot
    actor: ActorHandle
    answer: ObjectRef | None
    """The reference of the pending call."""
    name: str = ""
    """The GPUs and host of the actor; empty until it has answered."""
    shares_home: bool = True
    job: Job | None = None
    model: str | None = None
    lease: Lease | None = None
    held: ExitStack = field(default_factory=ExitStack)
    keep_after_s: float = 0.0

    def free(self) -> None:
        self.job = self.lease = None
        self.held.close()


class RayPool:
    """An executor with one actor per slot.

    `slots` counts the actors that have answered. More answer as the cluster gets room, and lost ones no longer count.
    """

    def __init__(self, slots: Sequence[Slot], home: Path, worker_module: str) -> None:
        self._home, self._worker_module = home.absolute(), worker_module
        self._home.mkdir(parents=True, exist_ok=True)
        self._token = f".seen-by-ray-{uuid.uuid4().hex}"
        (self._home / self._token).touch()
        self._happened: list[Progress | Ended] = []
        self._places = [self._place(slot) for slot in slots]
        self._last_slot_s = time.monotonic()
        try:
            while not self.slots:
                self._hear(ANSWER_S)
                if time.monotonic() - self._last_slot_s > FIRST_SLOT_WITHIN_S:
                    raise BenchError("shelves.ray.no_first_slot", wait_s=FIRST_SLOT_WITHIN_S)
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        return sum(1 for place in self._places if place.name)

    def start(self, job: Job) -> None:
        place = best_place(job, [place for place in self._places if place.name and place.job is None])
        place.job, place.model = job, job.model
        with self._losing(place):
            if place.shares_home:
                self._ask(place.actor.start, job.to_json())
            elif (taken := self._send(place, job)) is not None:
                place.free()
                self._happened.append(taken)
                return
            place.answer = place.actor.wait.remote(ANSWER_S)

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        if not self._happened:
            self._hear(timeout_s)
        if self.slots:
            self._last_slot_s = time.monotonic()
        elif time.monotonic() - self._last_slot_s > NO_SLOT_FOR_S:
            raise BenchError("shelves.ray.no_slot", wait_s=NO_SLOT_FOR_S)
        happened, self._happened = self._happened, []
        return happened

    def cancel(self, job: Job) -> None:
        for place in self._places:
            if place.job is job:
                with self._losing(place):
                    place.actor.cancel.remote()

    def kill(self, job: Job) -> None:
        for place in self._places:
            if place.job is job:
                with self._losing(place):
                    place.actor.kill.remote()

    def close(self) -> None:
        import ray

        deadline_s = time.monotonic() + STOP_WITHIN_S + CONNECT_S
        closing = [(place, place.actor.close.remote()) for place in self._places if place.name]
        for place, closed in closing:
            # Once the worker has stopped, its records are complete. They are copied for the last time after that.
            with self._losing(place, replace=False):
                ray.get(closed, timeout=max(ANSWER_S, deadline_s - time.monotonic()))
                self._keep(place)
                ray.get(place.actor.leave.remote(), timeout=STOP_WITHIN_S)
        for place in self._places:
            place.free()
            ray.kill(place.actor)
        (self._home / self._token).unlink(missing_ok=True)

    def _place(self, slot: Slot) -> _Place:
        import ray

        takes = _resources(slot)
        remote = ray.remote(max_restarts=0, max_task_retries=0, **takes)(SlotActor)
        actor = remote.remote(slot, str(self._home), self._token, self._worker_module)
        return _Place(slot, actor, actor.about.remote())

    def _hear(self, timeout_s: float) -> None:
        """Handle the answers of actors. Waits up to timeout_s for the first one."""
        import ray

        asked = {place.answer: place for place in self._places if place.answer is not None}
        if not asked:
            time.sleep(timeout_s)
            return
        answered, _ = ray.wait([*asked], num_returns=1, timeout=timeout_s)
        # The second call takes every other answer that has already arrived.
        answered, _ = ray.wait([*asked], num_returns=len(asked), timeout=0) if answered else ([], [])
        for one in answered:
            place = asked[one]
            with self._losing(place):
                place.answer = None
                answer = ray.get(one)
                if place.name:
                    self._take(place, answer)
                else:
                    _introduce(place, answer)

    def _take(self, place: _Place, events: list[dict[str, Any]]) -> None:
        """Turn the worker's events into those of the pool, and copy its folder back when that is due."""
        job = place.job
        if job is None:
            return
        for event in events:
            if event.pop("event") == "progress":
                self._happened.append(Progress(job, cast(Event, event)))
                continue
            ended = Ended(job, **event, where=place.name)
            if (lost := self._keep(place)) is not None:
                ended = lost
            place.free()
            self._happened.append(ended)
        if place.job is not None:
            place.answer = place.actor.wait.remote(ANSWER_S)
            if place.lease is not None and time.monotonic() > place.keep_after_s:
                self._keep(place)

    @contextmanager
    def _losing(self, place: _Place, replace: bool = True) -> Iterator[None]:
        """Replace the actor if it cannot be reached in this block, and report its job for a retry.

        The new actor runs once the cluster has room. Raises BenchError if the actor could not be initialised.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayError

        try:
            yield
        except RayError as error:
            # Such a failure would recur, so another actor would not help.
            if isinstance(error, RayActorError) and error.actor_init_failed:
                raise BenchError("shelves.ray.slot_did_not_start", reason=_last_line(error)) from None
            if not isinstance(error, RayActorError | GetTimeoutError):
                raise
            with suppress(RayError):
                ray.kill(place.actor)
            job = place.job
            place.free()
            if not replace:
                return
            if job is not None:
                self._happened.append(Ended(job, "failed", "its worker was lost", where=place.name, again=True))
            self._places[self._places.index(place)] = self._place(place.slot)

    def _ask(self, method: ActorMethod, *given: object) -> Any:
        import ray

        return ray.get(method.remote(*given))

    def _send(self, place: _Place, job: Job) -> Ended | None:
        """Start a job in the actor's private home. Returns an end if another process has the cell."""
        sent = [*job.inputs]
        if job.kind == "cell":
            folder = self._home / job.path
            # The head holds the lease for the actor, whose private home no other process sees.
            place.held = ExitStack()
            try:
                held = hold_lease(folder, CellRecord.at(folder).last_epoch, job.id)
                place.lease = place.held.enter_context(held)
            except LeaseTakenError as error:
                return Ended(job, "taken", str(error))
        for path in self._ask(place.actor.missing, sent):
            self._send_parcel(place, self._home / path, path)
        if job.kind == "cell":
            self._send_parcel(place, self._home / job.path, job.path)
        with tempfile.TemporaryDirectory(prefix="bench-ray-") as code:
            _write_code(job, Path(code))
            self._send_parcel(place, Path(code), CODE)
        self._ask(place.actor.start, job.to_json())
        place.keep_after_s = time.monotonic() + KEEP_EVERY_S
        return None

    def _send_parcel(self, place: _Place, source: Path, path: str) -> None:
        with tempfile.TemporaryFile() as parcel:
            pack(source, parcel)
            while len(chunk := parcel.read(CHUNK_BYTES)) == CHUNK_BYTES:
                self._ask(place.actor.receive, chunk, None)
            self._ask(place.actor.receive, chunk, path)

    def _keep(self, place: _Place) -> Ended | None:
        """Copy the files that the job has written so far into the home here, as a whole.

        Returns an end if another process has taken over the cell.
        """
        job, lease = place.job, place.lease
        if job is None or place.shares_home or self._ask(place.actor.missing, [job.path]):
            return None
        if job.kind != "cell" and (job.path == "." or (self._home / job.path).exists()):
            return None
        started_s = time.monotonic()
        target = self._home / job.path
        with tempfile.TemporaryFile() as parcel:
            self._ask(place.actor.pack, job.path)
            while chunk := self._ask(place.actor.read):
                parcel.write(chunk)
            if lease is None:
                target.parent.mkdir(parents=True, exist_ok=True)
                unpack_whole(parcel, target)
                return None
            try:
                lease.require()
                unpack_into(parcel, target)
            except LeaseLostError as error:
                return Ended(job, "taken", str(error))
        # A copy that takes long is repeated less often, so copying stays below KEEP_AT_MOST_FRAC of the time.
        took_s = time.monotonic() - started_s
        place.keep_after_s = time.monotonic() + max(KEEP_EVERY_S, took_s / KEEP_AT_MOST_FRAC)
        return None


def _resources(slot: Slot) -> dict[str, float]:
    """Return the resources that an actor requests from Ray. Raises RefusedError for a request that Ray cannot meet."""
    if slot.processes > 1 and slot.share < 1:
        raise RefusedError("shelves.ray.processes_cannot_share", processes=slot.processes)
    units = slot.processes * math.floor(slot.share * 1e4) / 1e4  # Ray counts in ten-thousandths
    return {"num_cpus": units, "num_gpus": units if slot.kind == "cuda" else 0}


def _introduce(place: _Place, about: About) -> None:
    """Take over what a new actor says about itself. Raises BenchError if its numerics differ from ours."""
    if about["numerics"] != NUMERICS_VERSION:
        raise BenchError(
            "shelves.ray.version_differs", host=about["host"], numerics=about["numerics"], our_numerics=NUMERICS_VERSION
        )
    gpu = f"GPU {about['gpus']} of " if place.slot.kind == "cuda" else ""
    place.name, place.shares_home = f"{gpu}{about['host']}", about["shares_home"]


def _write_code(job: Job, folder: Path) -> None:
    """Write the user's code, tasks and templates that a job may need, except installed packages."""
    modules = [one for one in (*plugins.in_use(), *user_code(job.spec)) if not one.installed]
    files = {path: content for module in modules for path, content in module.laid_out()}
    files |= {Path(name): plugins.user_file(name).read_bytes() for name in job.spec.own_files()}
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _connect(address: str) -> None:
    """Connect to the cluster. Raises RefusedError if Ray is not installed or no cluster answers."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError:
        raise RefusedError("shelves.ray.not_installed") from None
    if ray.is_initialized():
        return
    given = address or os.environ.get("RAY_ADDRESS", "")
    _require_answer(given)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(given or "auto", log_to_driver=False, logging_level="ERROR")
        # Otherwise Ray prints the log of a lost machine to stdout, in the middle of the JSON of --json.
        ray._private.worker._worker_logs_enabled = False
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        raise RefusedError(
            "shelves.ray.cannot_connect",
            colon=":" if address else "",
            address=address,
            reason=_last_line(error),
            remedy=_REMEDY,
        ) from None
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray installs its own


_REMEDY = (
    "Start a cluster with `ray start --head` and run bench on one of its machines, or give the address of the cluster "
    "that this machine belongs to: --executor ray:HOST:6379."
)


_SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first frame that both ends of an HTTP/2 connection send (RFC 9113, section 3.4), with no settings in it."""


def _require_answer(address: str) -> None:
    """Raise RefusedError unless a gRPC server, such as Ray's, answers at HOST:PORT within seconds.

    Ray itself would wait for minutes.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if address in ("", "auto"):
        return
    if not (host and port.isdecimal()):
        raise RefusedError("shelves.ray.not_an_address", address=address)
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS_FRAME)
            answer = connection.recv(len(_SETTINGS_FRAME))
    except (OSError, OverflowError) as error:
        raise RefusedError("shelves.ray.no_answer", address=address, error=error, remedy=_REMEDY) from None
    # Byte 3 of an HTTP/2 frame is its type; 4 is SETTINGS.
    if answer[3:4] != _SETTINGS_FRAME[3:4]:
        raise RefusedError("shelves.ray.not_a_cluster", address=address, remedy=_REMEDY)


def _last_line(error: Exception) -> str:
    line = str(error).strip().rpartition("\n")[2].strip()
    return line if line.endswith(".") else f"{line}."


def _cluster_slots(address: str) -> list[Slot]:
    """Return a slot for each GPU and each core of the cluster, whether or not others are using it."""
    _connect(address)
    import ray

    kinds: tuple[tuple[Device, str, str], ...] = (("cuda", "a GPU of {}", "GPU"), ("cpu", "{}", "CPU"))
    machines = [
        (node["NodeManagerHostname"], node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]
    ]
    return [
        Slot(kind, name.format(host), machine=node)
        for kind, name, resource in kinds
        for host, node, has in machines
        for _ in range(int(has.get(resource, 0)))
    ]


RAY = ExecutorKind(
    "ray",
    "a Ray cluster: ray:HOST:PORT, or ray for that of this machine; needs pip install -e '.[ray]'",
    RayPool,
    _cluster_slots,
)
