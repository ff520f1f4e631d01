"""The checks of `bench selftest`: how they run, and the checks of engines.

A check is a function with `@check` at the top level of a module here. It runs in a process of its own: if it crashes
the device, runs out of memory or hangs, only this check fails. All checks together have `TOTAL_S`; later ones are not
run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.executors.slots import ONE_THREAD
from harness.plugins import Kind

if TYPE_CHECKING:
    from harness.engines.base import Engine
    from harness.models.language_model import LanguageModel

TOTAL_S = 600.0
LONGEST_S = 240.0
"""The time limit for one check."""
_OUTPUT_CHARACTERS = 4000

Result = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class CheckPlace:
    """The device and the folder of a check."""

    device: str
    """As `train.device`, but never `auto`."""
    folder: Path
    """An empty folder for its files."""

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    passed: bool
    found: str
    """A phrase for the table."""
    figures: Mapping[str, object] = field(default_factory=dict)
    """Measurements by name; names end in the unit."""


@dataclass(frozen=True)
class Check:
    """A check by name."""

    name: str
    run: Callable[[CheckPlace], Finding]
    lacks: Callable[[str], str | None]
    """Device -> why the check cannot run there; None if it can."""

    @property
    def summary(self) -> str:
        return " ".join((self.run.__doc__ or "").split())


@dataclass(frozen=True)
class Outcome:
    """The end of a check."""

    check: str
    result: Result
    found: str
    """The finding, or the reason for a check that crashed or was not run."""
    took_s: float = 0.0
    figures: Mapping[str, object] = field(default_factory=dict)
    output: str = ""
    """The end of a failed check's output."""


CHECKS: Kind[Check] = Kind(
    "check", lambda thing: isinstance(thing, Check), "harness.shelves.selftest", "bench ls checks"
)


def check(
    name: str, lacks: Callable[[str], str | None] = lambda device: None
) -> Callable[[Callable[[CheckPlace], Finding]], Check]:
    """Turn a function into a check. lacks: see `Check`."""
    return lambda run: Check(name, run, lacks)


def run_checks(device: str, names: Sequence[str], began: Callable[[str], None]) -> Iterator[Outcome]:
    """Run checks, and yield the outcome of each as it ends. began: called with the name of each check that starts."""
    until_s = time.monotonic() + TOTAL_S
    for name in names:
        reason = CHECKS.find(name).lacks(device)
        if reason is None and (left_s := until_s - time.monotonic()) > 0:
            began(name)
            yield _run_apart(name, device, min(LONGEST_S, left_s))
        else:
            yield Outcome(name, "not run", reason or f"the {TOTAL_S / 60:.0f} minutes for all checks are over")


def _run_apart(name: str, device: str, limit_s: float) -> Outcome:
    """Run one check in a process group of its own, which is killed at the end."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-selftest-", ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "finding.json"
        command = [sys.executable, "-P", "-m", __name__, name, device, str(result)]
        with (Path(folder) / "output.txt").open("w+b") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | ONE_THREAD, start_new_session=True
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_group(process)
            took_s = time.monotonic() - started_s
            output.seek(0)
            text = output.read().decode(errors="replace").strip()[-_OUTPUT_CHARACTERS:]
        if code == 0 and result.exists():
            finding = Finding(**json.loads(result.read_text(encoding="utf-8")))
            passed = finding.passed
            return Outcome(
                name, "passed" if passed else "failed", finding.found, took_s, finding.figures, "" if passed else text
            )
    why = f"took longer than {limit_s:.0f} s" if code is None else text.rpartition("\n")[2] or f"ended with code {code}"
    return Outcome(name, "failed", why, took_s, output=text)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all workers that it left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def device_name(device: str) -> str:
    """Return the name of the GPU, or of the processor."""
    from harness.run.provenance import processor_name

    if device == "cpu":
        return processor_name()
    import torch

    return torch.cuda.get_device_name(device)


def machine(device: str) -> dict[str, object]:
    """Return versions and hardware, for the result file."""
    import torch

    from harness.run.provenance import provenance

    facts = provenance() | {"cores": os.cpu_count(), "cuda": torch.version.cuda}
    facts["memory_gb"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"gpu_memory_gb": properties.total_memory / 1e9, "gpus": torch.cuda.device_count()}
        facts["gpu_capability"] = f"{properties.major}.{properties.minor}"
    return facts


# Checks of what engines sample.


def _needs_cuda(device: str) -> str | None:
    return "a CPU has no CUDA graphs" if device == "cpu" else None


def _needs_vllm(device: str) -> str | None:
    return None if find_spec("vllm") else "vLLM is not installed"


def _tiny(place: CheckPlace, dtype: str = "float32") -> LanguageModel:
    import torch

    from harness.models.language_model import load_model
    from harness.shelves.engine_contract import with_wide_heads

    torch.set_num_threads(1)  # as in every worker
    tiny = load_model("builtin:tiny", place.device, getattr(torch, dtype))
    return with_wide_heads(tiny) if find_spec("vllm") else tiny


def _engines(language_model: LanguageModel) -> dict[str, Engine]:
    """Build each engine that is installed here over the model, by name."""
    from harness.config.rollout import RolloutSpec
    from harness.engines.base import make_engine

    names = ["torch", *(["vllm"] if find_spec("vllm") else [])]
    return {name: make_engine(RolloutSpec(engine=name, max_completion_tokens=40), language_model) for name in names}


@check("engine contract")
def engine_contract(place: CheckPlace) -> Finding:
    """Every installed engine keeps all promises of the contract in `harness.engines.base`."""
    from harness.shelves.engine_contract import PROMISES, BrokenPromiseError, ContractTrial

    language_model = _tiny(place)
    broken: dict[str, str] = {}
    engines = _engines(language_model)
    for engine, drawing in engines.items():
        trial = ContractTrial(drawing, language_model, rounds_by_company=engine != "torch" or not place.on_cpu)
        for name, promise in PROMISES.items():
            try:
                promise(trial)
            except BrokenPromiseError as error:
                broken[f"{engine}: {name}"] = str(error)
    first = "".join(f"; {name} ({why})" for name, why in list(broken.items())[:1])
    kept = len(engines) * len(PROMISES) - len(broken)
    found = f"{kept} of {kept + len(broken)} promises kept by {' and '.join(engines)}{first}"
    return Finding(not broken, found, {"broken": broken})


@check("mismatch in bfloat16")
def mismatch(place: CheckPlace) -> Finding:
    """On the same bfloat16 weights, the log-probs of every engine are close to the trainer's."""
    from harness.engines.parity import BOUNDS
    from harness.shelves.engine_contract import ContractTrial, trainer_logps

    language_model = _tiny(place, "bfloat16")
    figures = {}
    for name, engine in _engines(language_model).items():
        trial = ContractTrial(engine, language_model)
        drawn = trial.draw()
        apart = (drawn.logps - trainer_logps(language_model, trial.prompts, drawn)).abs()
        tokens = int(drawn.lengths.sum())
        figures[name] = {"mean_nats": apart.sum().item() / tokens, "most_nats": apart.max().item(), "tokens": tokens}
    worst = max(one["mean_nats"] for one in figures.values())
    found = "; ".join(f"{name}: {one['mean_nats']:.1g} nats per token" for name, one in figures.items())
    return Finding(worst <= BOUNDS["bfloat16"], f"{found} (at most {BOUNDS['bfloat16']})", figures)


@check("graphs against eager", _needs_cuda)
def graphs_against_eager(place: CheckPlace) -> Finding:
    """The torch engine draws the same with CUDA graphs and without. Kernels may round differently, so a few completions
    may differ; those with equal tokens have equal log-probs up to rounding."""
    import torch

    from harness.engines.torch.engine import TorchEngine
    from harness.engines.torch.passes import EAGER, GRAPHS
    from harness.shelves.engine_contract import SAME_COMPANY_FRAC, ContractTrial, rows_of

    language_model = _tiny(place)
    drawn = []
    for shapes in (GRAPHS, EAGER):
        engine = TorchEngine(
            language_model.model,
            language_model.pad_token_id,
            language_model.eos_token_ids,
            language_model.decode,
            shapes,
        )
        trial = ContractTrial(engine, language_model)
        drawn += [trial.draw(), trial.draw()]  # the second call replays what the first has captured
    recorded, replayed, eager, _ = drawn
    if not torch.equal(recorded.tokens, replayed.tokens):
        return Finding(False, "replayed CUDA graphs draw other tokens than the call that captured them")
    pairs = [*zip(rows_of(replayed), rows_of(eager), replayed.logps, eager.logps, strict=True)]
    same = [(one, other, row) for row, known, one, other in pairs if row == known]
    apart = max(((one[: len(row)] - other[: len(row)]).abs().max().item() for one, other, row in same), default=0.0)
    share = len(same) / len(pairs)
    found = f"{share:.0%} of completions equal, log-probs up to {apart:.1g} nats apart"
    return Finding(
        share >= SAME_COMPANY_FRAC and apart <= trial.rounding_nats, found, {"alike_frac": share, "most_nats": apart}
    )


@check("vLLM sync", _needs_vllm)
def vllm_sync(place: CheckPlace) -> Finding:
    """After the weights change, vLLM's copy gives the trainer's log-probs, in the dtype of training on this device. A
    sync that misses a weight raises EngineMismatchError."""
    import torch

    from harness.engines.parity import BOUNDS
    from harness.shelves.engine_contract import ContractTrial, trainer_logps

    dtype = "float32" if place.on_cpu else "bfloat16"
    language_model = _tiny(place, dtype)
    trial = ContractTrial(_engines(language_model)["vllm"], language_model)
    syncs_s, apart_nats = [], []
    for round_number in range(3):
        with torch.no_grad():
            for weight in language_model.model.parameters():
                weight.mul_(1 + 0.02 * round_number)
        drawn = trial.draw()
        apart = (drawn.logps - trainer_logps(language_model, trial.prompts, drawn)).abs().sum() / drawn.lengths.sum()
        syncs_s.append(drawn.cost.sync_s)
        apart_nats.append(apart.item())
    figures = {"sync_s": syncs_s, "mean_nats": apart_nats}
    found = f"3 syncs, up to {max(apart_nats):.1g} nats per token from the trainer (at most {BOUNDS[dtype]})"
    return Finding(max(apart_nats) <= BOUNDS[dtype], found, figures)


def main(name: str, device: str, result: Path) -> None:
    """Run one check and write its finding to `result`; the check's files go next to it."""
    folder = result.parent / "files"
    folder.mkdir()
    finding = CHECKS.find(name).run(CheckPlace(device, folder))
    result.write_text(json.dumps(asdict(finding)), encoding="utf-8")


if __name__ == "__main__":
    # Run as a program, this file is the module `__main__`; the checks belong to the imported one.
    import harness.shelves.selftest.checks as checks

    checks.main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
