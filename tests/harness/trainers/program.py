"""A program that keeps to the contract, or breaks it as `args.mode` says. It trains nothing, so it takes no time."""

import json
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

config = json.loads(Path(sys.argv[1]).read_text())
args, done, output = config["args"], config["done"], Path(config["output"])
mode, step = args.get("mode", "good"), done["step"]


def write(**row: object) -> None:
    with (output / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def checkpoint() -> None:
    folder = output / f"step-{step}"
    shutil.copytree(config["resume"] or config["model"], folder)
    if mode == "shape":
        weights = folder / "model.safetensors"
        (length,) = struct.unpack("<Q", weights.read_bytes()[:8])
        head = json.loads(weights.read_bytes()[8 : 8 + length])
        norm = next(one for one in head if one.endswith("norm.weight"))
        head[norm]["shape"].insert(0, 1)
        text = json.dumps(head).encode()
        weights.write_bytes(struct.pack("<Q", len(text)) + text + weights.read_bytes()[8 + length :])
    write(step=step, checkpoint=f"step-{step}")


print(f"resumes from {done['step']}", flush=True)
if mode == "family":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while step < config["budget"]["steps"] or mode == "overrun":
    step += 1
    if mode == "silent" and step == 2:
        time.sleep(600)
    if mode == "exit" and step == 3:
        print("\n".join(f"line {number}" for number in range(30)), flush=True)
        sys.exit(3)
    if mode == "early" and step == 3:
        sys.exit(0)
    loss = float("nan") if mode == "nan" and step == 4 else 1 / step
    tokens = 5 if mode == "backwards" and step == 3 else step * args.get("tokens", 10)
    write(step=step, generated_tokens=tokens, loss=loss, mean=step / 10)
    if mode == "overrun" and step > config["budget"]["steps"]:
        time.sleep(0.05)
        continue
    due = step % config["checkpoint_every"] == 0 or step == config["budget"]["steps"]
    if due and not (mode == "no_final" and step == config["budget"]["steps"]) and mode != "overrun":
        checkpoint()
    time.sleep(args.get("sleep", 0))
