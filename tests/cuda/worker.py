"""A worker process that has the pretended device: `python -m tests.cuda.worker HOME`, as `harness.run.worker` is one.
What it sees of its slot goes to HOME/seen, a JSON line for each thing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from harness.run.worker import main
from tests.cuda import device


def see(**what: object) -> None:
    folder = Path(sys.argv[1]) / "seen"
    folder.mkdir(exist_ok=True)
    with (folder / str(os.getpid())).open("a") as file:
        file.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    device.install()
    setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: see(share=share))  # noqa: B010 - other types
    see(gpu=os.environ["CUDA_VISIBLE_DEVICES"], threads=os.environ["OMP_NUM_THREADS"])
    main()
