"""The checks of `bench selftest` that train whole cells in worker processes, as `bench run` does.

They check memory, resume after a kill, two cells at once, and the time of a step.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec, recorded_spec
from harness.executors.slots import Slot
from harness.plan.memory import estimate_memory
from harness.records import CellRecord, cell_directory_name
from harness.records.files import write_json
from harness.shelves.selftest.checks import CheckPlace, Finding, check

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SMALL = {
    "algorithm": "grpo",
    "model.source": "builtin:tiny",
    "task.train": "arithmetic",
    "rollout.engine": "torch",
    "rollout.prompts_per_step": 8,
    "rollout.samples_per_prompt": 8,
    "rollout.max_completion_tokens": 32,
    "train.steps": 6,
    "train.learning_rate": 3e-4,
    "train.micro_batch_tokens": 2048,
    "train.checkpoint_every": 2,
    "eval.problems": 16,
    "eval.every": 0,
    "eval.samples": 2,
    "eval.max_completion_tokens": 32,
}
MEMORY_FACTOR = 1.5
"""The largest factor allowed between the plan's estimate and the measured memory, either way."""


def _spec(place: CheckPlace, settings: dict[str, object]) -> RunSpec:
    return resolve([Layer("bench selftest", SMALL | {"train.device": place.device} | settings)], seed=0)


def _new_cell(place: CheckPlace, name: str, spec: RunSpec) -> CellRecord:
    cell = CellRecord.at(place.folder / "selftest" / "cells" / cell_directory_name(name, 0, "0" * 10))
    cell.path.mkdir(parents=True)
    write_json(cell.path / "spec.json", spec.model_dump(mode="json"))
    return cell


class CellFailedError(Exception):
    """A cell did not end as `done`."""


class _Worker:
    """A worker process (`harness.run.worker`)."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-P", "-m", "harness.run.worker", str(home)]
        self._home = home
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=Slot("cpu", "").worker_environment(),  # on a GPU too, that of the check shows it
        )

    def start(self, cell: CellRecord) -> None:
        from harness.run.sweep import cell_job

        assert self.process.stdin is not None
        job = cell_job(cell, recorded_spec(cell), self._home)
        self.process.stdin.write(json.dumps(job.to_json()) + "\n")
        self.process.stdin.flush()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events until the job ends. Raises CellFailedError if it does not end as `done`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "ended":
                if event["state"] != "done":
                    raise CellFailedError(f"a cell ended as {event['state']}: {event['reason']}")
                return
            yield event
        raise CellFailedError(f"a worker ended with code {self.process.wait()}")

    def finish(self) -> None:
        """Wait for the end of the job. Raises as `events`."""
        for _ in self.events():
            pass


@contextmanager
def _workers(place: CheckPlace, count: int) -> Iterator[list[_Worker]]:
    workers = [_Worker(place.folder) for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()


@check("memory plan")
def memory_plan(place: CheckPlace) -> Finding:
    """The peak memory of a cell is close to the estimate of `bench plan`. On CUDA, the model has the shape of
    Qwen2.5-0.5B, and the peak is that of torch's allocator, without the CUDA context."""
    settings: dict[str, object] = {"train.steps": 2, "train.checkpoint_every": 2}
    if not place.on_cpu:
        save_half_billion(place.folder / "model")
        # Untrained, all its rewards are equal; the KL term gives a gradient.
        settings |= {
            "model.source": f"path:{place.folder / 'model'}",
            "objective.kl.where": "loss",
            "objective.kl.beta": 0.01,
            "objective.kl.reference": "initial",
            "rollout.max_completion_tokens": 256,
        }
    spec = _spec(place, settings)
    estimate = estimate_memory(spec, cuda=not place.on_cpu)
    assert estimate is not None, "both models have a known architecture"
    planned_gb = (estimate.total_bytes - (0 if place.on_cpu else estimate.held_bytes["process"])) / 1e9
    cell = _new_cell(place, "memory", spec)
    with _workers(place, 1) as (worker,):
        worker.start(cell)
        worker.finish()
    measured_gb = max(row["peak_memory_mb"] for row in cell.read_timing()) / 1e3
    factor = planned_gb / measured_gb
    found = f"{planned_gb:.2f} GB planned, {measured_gb:.2f} GB measured (x{factor:.2f}, within x{MEMORY_FACTOR})"
    figures = {"planned_gb": planned_gb, "measured_gb": measured_gb, "phase": estimate.peak_phase}
    return Finding(abs(math.log(factor)) <= math.log(MEMORY_FACTOR), found, figures)


def save_half_billion(folder: Path) -> None:
    """Save a model in the shape of Qwen2.5-0.5B with random weights, without a download.

    Its tokenizer is the tiny model's, with a word for every further token.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from harness.models.language_model import LanguageModel
    from harness.models.tiny import tiny_tokenizer

    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    LanguageModel(Qwen2ForCausalLM(config).to(torch.bfloat16), tiny_tokenizer(config.vocab_size)).save(folder)


@check("kill and resume")
def kill_and_resume(place: CheckPlace) -> Finding:
    """A worker is killed one step after a checkpoint, and another worker repeats that step. On a CPU, the final weights
    equal those of an uninterrupted cell; CUDA kernels may sum in another order."""
    spec = _spec(place, {})
    cell, unbroken = (_new_cell(place, name, spec) for name in ("killed", "unbroken"))
    with _workers(place, 2) as (worker, another):
        worker.start(cell)
        for event in worker.events():
            # The step after a checkpoint is one that no checkpoint holds yet.
            if event.get("step", 0) > spec.train.checkpoint_every:
                break
        worker.process.kill()
        worker.process.wait()
        before = cell.read_steps()[-1]
        if before["step"] == spec.train.steps:
            return Finding(False, "the cell was over before it was killed")
        for one in (cell, unbroken):
            another.start(one)
            another.finish()
    after = cell.read_steps()[before["step"] - 1]
    from_step = cell.read_starts()[-1]["from_step"]
    drawn = ("reward/mean", "len/mean")
    remade = all(before[name] == after[name] for name in drawn)
    same_weights = cell.digest == unbroken.digest
    found = (
        f"killed after step {before['step']}, resumed from {from_step}; the repeated step is "
        f"{'the same' if remade else 'different'}, final weights {'equal' if same_weights else 'unequal'} to those of "
        "an uninterrupted cell"
    )
    figures = {"killed_after_step": before["step"], "resumed_from_step": from_step, "same_weights": same_weights}
    return Finding(remade and from_step > 0 and (same_weights or not place.on_cpu), found, figures)


@check("two cells side by side")
def side_by_side(place: CheckPlace) -> Finding:
    """The same cell runs alone, then in two processes at once: on a CPU only the time may differ, on CUDA also the
    rounding."""
    spec = _spec(place, {})
    alone, one, other = (_new_cell(place, name, spec) for name in ("alone", "one", "other"))
    # Each in a process of its own: a second cell in one process is faster, since kernels are compiled and loaded.
    with _workers(place, 3) as (first_worker, *workers):
        for busy in ([(first_worker, alone)], [*zip(workers, (one, other), strict=True)]):
            for worker, cell in busy:
                worker.start(cell)
            for worker, _ in busy:
                worker.finish()
    first = [{name: cell.read_steps()[0][name] for name in ("reward/mean", "len/mean")} for cell in (one, other, alone)]
    drawn_alike = first[0] == first[1] == first[2]
    same_weights = one.digest == other.digest == alone.digest
    # The first step is slower: memory is fresh, and kernels are chosen or recorded.
    together_s, alone_s = (
        sum(row["total_s"] for row in cell.read_timing() if row.get("total_s") and row["step"] > 1)
        / (spec.train.steps - 1)
        for cell in (one, alone)
    )
    found = (
        f"first step {'the same' if drawn_alike else 'different'}, final weights "
        f"{'equal' if same_weights else 'unequal'}; a step takes {together_s / alone_s:.1f} times as long as alone"
    )
    figures = {"same_weights": same_weights, "step_together_s": together_s, "step_alone_s": alone_s}
    return Finding(drawn_alike and (same_weights or not place.on_cpu), found, figures)


# Speed, measured by the scripts of benchmarks/.


def _needs_benchmarks(device: str) -> str | None:
    return None if (BENCHMARKS / "roofline.py").is_file() else "there is no checkout with benchmarks/ here"


def _needs_trl(device: str) -> str | None:
    return _needs_benchmarks(device) or (None if find_spec("trl") else "TRL is not installed")


def _benchmark(place: CheckPlace, script: str, *options: str) -> dict[str, Any]:
    """Return what a script measured, whether or not it met its own bounds, which are for an idle machine."""
    command = [sys.executable, str(BENCHMARKS / script), "--json", "--device", place.device, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"{script} ended with code {done.returncode}")
    measured: dict[str, object] = json.loads(done.stdout)
    return measured


@check("step time beside the roofline", _needs_benchmarks)
def roofline(place: CheckPlace) -> Finding:
    """The time of a step of the tiny profile, compared with the least that its arithmetic and memory traffic take here.
    The model is too small to fill a GPU: `python benchmarks/roofline.py --model ...` measures larger ones."""
    # On a GPU the first steps record the graphs.
    options = ["--steps", "1", "--threads", "1"] if place.on_cpu else ["--steps", "10"]
    measured = _benchmark(place, "roofline.py", *options)
    step_s, fraction = measured["measured"]["seconds_per_step"], measured["fraction_of_algorithmic"]
    found = f"{step_s:.3f} s per step, {100 * fraction:.2g}% of the roofline"
    figures = {"step_s": step_s, "fraction_of_limit": fraction, "device": measured["device"]}
    return Finding(0 < fraction <= 1, found, figures)


@check("step time beside TRL", _needs_trl)
def beside_trl(place: CheckPlace) -> Finding:
    """A step of ours does the same work as one of TRL's GRPOTrainer, and is not slower. On a CPU TRL has one of its
    settings, without torch.compile, which takes a minute there; `python benchmarks/grpo_step.py` finds the fastest."""
    one_setting = ["--threads", "1", "--trl", "base"] if place.on_cpu else []
    turns = ["--case", "varying", "--pairs", "2", "--steps", "2", "--warmup", "2"]
    measured = _benchmark(place, "grpo_step.py", *turns, *one_setting)
    ratio, unequal = measured["ratio_varying"], measured["varying"]["unequal"]
    found = f"our step takes {ratio:.2f} of TRL's time{''.join(f'; not the same work: {one}' for one in unequal)}"
    return Finding(ratio <= 1 and not unequal, found, {"ratio": ratio, "unequal": unequal})
