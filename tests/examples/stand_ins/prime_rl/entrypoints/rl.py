"""Plays `python -m prime_rl.entrypoints.rl @ rl.toml`: writes the logs of orchestrator and trainer, the weights that
it broadcasts, and checkpoints, and learns nothing. What `stand_in` does stands in `../verl`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

TOKENS_MEAN = 2.5


def main(file: str, *words: str) -> None:
    config = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    mode = words[0].partition("=")[2].strip('"') if words else None
    orchestrator, done = config["orchestrator"], 0
    (source,) = orchestrator["train"]["source"]
    prompts = Path(source["env"]["taskset"]["prompts"]).read_text(encoding="utf-8").splitlines()
    assert len(prompts) * orchestrator["group_size"] == config["max_steps"] * orchestrator["batch_size"]
    if "resume" in config:
        folder = Path(config["resume"]["dir"])
        assert (folder / "trainer").is_dir() and (folder / "orchestrator").is_dir()
        done = int(folder.name.removeprefix("step_"))
    print(f"Training from step {done}", flush=True)
    run = Path(config["output_dir"], config["run"]["name"])
    run.mkdir()
    for step in range(done + 1, config["max_steps"] + 1):
        if mode == "dies" and step == 3 and not done:
            print("CUDA out of memory", flush=True)
            os._exit(9)
        write(run / orchestrator["monitors"]["file"]["path"], step, orchestrator_metrics(orchestrator, step))
        weights = run / "broadcasts" / f"step_{step}"
        weights.mkdir(parents=True)
        shutil.copy(Path(config["model"]["name"], "model.safetensors"), weights)
        (weights / "STABLE").touch()
        is_last = step == config["max_steps"]
        if step % config["ckpt"]["interval"] == 0 and not is_last:
            save(run, step)
        log = run / config["trainer"]["monitors"]["file"]["path"]
        gradient = {} if mode == "diverges" and step == 3 else {"optim/grad_norm": 0.5}
        write(log, step, gradient)
        write(log, step, {"loss/mean": 0.1})
        write(log, step, {"time/broadcast_weights": 0.0})
    save(run, config["max_steps"])


def orchestrator_metrics(orchestrator: dict[str, Any], step: int) -> dict[str, float]:
    drawn = orchestrator["batch_size"]
    return {
        "train/agg/all/num_output_tokens/mean": TOKENS_MEAN,
        "train/agg/all/agent/num_output_tokens/mean": TOKENS_MEAN,
        "train/agg/all/agent/reward/mean": step / 10,
        "progress/rollouts": drawn,
        "progress/output_tokens": round(TOKENS_MEAN * drawn),
    }


def write(log: Path, step: int, metrics: dict[str, float]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "time": 0.0, **metrics}) + "\n")


def save(run: Path, step: int) -> None:
    for part in ("trainer", "orchestrator"):
        (run / "checkpoints" / f"step_{step}" / part).mkdir(parents=True)


if __name__ == "__main__":
    main(*sys.argv[2:])
