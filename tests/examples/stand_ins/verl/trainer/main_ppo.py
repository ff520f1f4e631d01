"""Plays `python -m verl.trainer.main_ppo`: takes its settings, writes its log and its checkpoints, and learns nothing.

`+stand_in=dies` stops it in step 3 of a run from the start; with `+stand_in=diverges` its third gradient is NaN, which
verl's log holds as null.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

TOKENS_MEAN = 2.5


def main(words: list[str]) -> None:
    settings: dict[str, Any] = {}
    for name, _, value in (word.removeprefix("+").partition("=") for word in words):
        settings[name] = json.loads(value)
    prompts = Path(settings["data.train_files"]).read_text(encoding="utf-8").splitlines()
    steps, batch = settings["trainer.total_training_steps"], settings["data.train_batch_size"]
    assert len(prompts) == steps * batch
    mode, resume, done = settings.get("stand_in"), settings["trainer.resume_from_path"], 0
    if settings["trainer.resume_mode"] == "resume_path":
        assert Path(resume, "actor", "optim_world_size_1_rank_0.pt").exists() and Path(resume, "data.pt").exists()
        done = int(resume.split("global_step_")[-1])
    print(f"Training from step {done}", flush=True)
    log = Path(settings["ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"])
    with log.open("w", encoding="utf-8", buffering=1) as file:
        for step in range(done + 1, steps + 1):
            if mode == "dies" and step == 3 and not done:
                print("CUDA out of memory", flush=True)
                os._exit(9)
            if step % settings["trainer.save_freq"] == 0 or step == steps:
                save(Path(settings["trainer.default_local_dir"]) / f"global_step_{step}", settings)
            norm = None if mode == "diverges" and step == 3 else 0.5
            data = {"response_length/mean": TOKENS_MEAN, "critic/score/mean": step / 10, "actor/grad_norm": norm}
            file.write(json.dumps({"step": step, "data": data}) + "\n")


def save(folder: Path, settings: dict[str, Any]) -> None:
    """As verl's FSDP engine: shards of each process, and the whole model beside them."""
    contents = settings["actor_rollout_ref.actor.checkpoint.save_contents"]
    (folder / "actor").mkdir(parents=True)
    for name in ("model", "optim"):
        (folder / "actor" / f"{name}_world_size_1_rank_0.pt").touch()
    if "hf_model" in contents:
        shutil.copytree(settings["actor_rollout_ref.model.path"], folder / "actor" / "huggingface")
    (folder / "data.pt").touch()
    (folder.parent / "latest_checkpointed_iteration.txt").write_text(folder.name.rpartition("_")[2])


if __name__ == "__main__":
    main(sys.argv[1:])
