"""The memory that `bench plan` estimates for a cell, beside the peak that its records say it took.

    BENCH_DATA=... BENCH_MODELS=... python benchmarks/memory.py --json

Short cells on a CPU, each by a `bench run` of its own: of the built-in model as `make demo` runs it, and of
SmolLM2-135M in float32 in batches of two shapes. The latter are left out where the model or GSM8K is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import machine_line
from outcome import arguments, bounds, finish

WITHIN = 1.5
SMOLLM2 = Path(os.environ.get("BENCH_MODELS", "")) / "SmolLM2-135M-Instruct.Q4_1.gguf"
ONE_CELL = ["--seeds", "1", "--arms", "group_std"]
BENCH = [sys.executable, "-c", "from harness.cli import main; main()"]


def smollm2(prompts: int, samples: int, completion_tokens: int, micro_batch_tokens: int) -> list[str]:
    """Two steps of these batches, and an evaluation of as many samples."""
    settings = {
        "model.source": f"gguf:{SMOLLM2}",
        "rollout.prompts_per_step": prompts,
        "rollout.samples_per_prompt": samples,
        "rollout.max_completion_tokens": completion_tokens,
        "train.steps": 2,
        "train.warmup_steps": 0,
        "train.micro_batch_tokens": micro_batch_tokens,
        "eval.every": 0,
        "eval.problems": prompts,
        "eval.samples": samples,
        "eval.max_completion_tokens": completion_tokens,
    }
    words = [word for knob, value in settings.items() for word in ("--set", f"{knob}={value}")]
    return ["--profile", "smollm2-gsm8k", *words]


def cells() -> dict[str, list[str]]:
    """What distinguishes each cell, as options of `bench plan` and `bench run`."""
    found: dict[str, list[str]] = {"the demo's cell, builtin:tiny": []}
    if SMOLLM2.is_file() and os.environ.get("BENCH_DATA"):
        found["SmolLM2-135M, 4 x 4 x 64 tokens"] = smollm2(4, 4, 64, 4096)
        found["SmolLM2-135M, 2 x 8 x 32 tokens, passes of 512"] = smollm2(2, 8, 32, 512)
    return found


def measure(options: list[str]) -> dict[str, Any]:
    """Estimated and measured, in GB (10^9 bytes)."""
    command = ["std_norm", *ONE_CELL, *options]
    with tempfile.TemporaryDirectory() as home:
        planned = subprocess.run([*BENCH, "plan", *command, "--json"], check=True, stdout=subprocess.PIPE)
        memory = json.loads(planned.stdout)["cost"]["memory"]
        subprocess.run([*BENCH, "run", *command, "--home", home, "--workers", "1"], check=True, stdout=sys.stderr)
        (timing,) = Path(home).glob("*/cells/*/timing.jsonl")
        peak_mb = max(json.loads(row)["peak_memory_mb"] for row in timing.read_text().splitlines())
    estimated_gb, measured_gb = memory["gb"], peak_mb / 1000
    return {
        "estimated_gb": estimated_gb,
        "measured_gb": measured_gb,
        "ratio": estimated_gb / measured_gb,
        "peak_phase": memory["peak_phase"],
        "parts_gb": memory["parts_gb"],
    }


def main() -> None:
    given = arguments(__doc__ or "").parse_args()
    measured = {name: measure(options) for name, options in cells().items()}
    lines = [machine_line(1)]
    for name, cell in measured.items():
        lines.append(
            f"  {name:48} estimated {cell['estimated_gb']:5.2f} GB, measured {cell['measured_gb']:5.2f} GB, "
            f"x{cell['ratio']:.2f}"
        )
    farthest = max(max(cell["ratio"], 1 / cell["ratio"]) for cell in measured.values())
    lines.append(f"farthest off by a factor of {farthest:.2f} (required: {WITHIN:g}, either way)")
    outcome = {
        "settings": vars(given),
        "farthest_factor": farthest,
        "cells": measured,
        "required": bounds(at_most={"farthest_factor": WITHIN}),
        "faults": [],
    }
    finish("memory", outcome, lines, given)


if __name__ == "__main__":
    main()
