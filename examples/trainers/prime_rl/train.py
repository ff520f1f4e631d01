"""Trains a cell with prime-rl: writes rl.toml, starts its launcher, and converts its output to what the contract of
`bench show trainer` asks for. It runs in prime-rl's environment, which has bench too; the files beside it run in
prime-rl. Written against its main branch at 559b447 (August 2026, which calls itself 0.8.0), and never run with it.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

from algorithms import Objective, active_knobs, with_overrides
from algorithms.dialects import translate
from algorithms.elsewhere.prime_rl import LOSS, PRIME_RL, RL

HERE = Path(__file__).resolve().parent
CARRIED = ("ratio", "rule", "sequence_penalty")
"""Knobs that bench's loss decides; prime-rl computes advantages, and divides by the tokens of the step."""
NO_ROLES = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
NEEDED = ("progress/rollouts", "time/broadcast_weights")
"""The last metrics of a step that the orchestrator and the trainer write."""


def objective_settings(objective: Objective) -> dict:
    """prime-rl's settings for an objective; exits if neither prime-rl nor bench's loss can express it."""
    translation = translate(PRIME_RL, objective)
    settings, lost = dict(translation.written.settings), {*translation.lost, *translation.written.beside}
    carried = {name for name in lost if name.split(".")[0] in CARRIED or name.startswith(LOSS)}
    if carried and objective.select.type == "none":
        settings = {name: value for name, value in settings.items() if not name.startswith(LOSS)}
        settings |= {f"{LOSS}type": "custom", f"{LOSS}import_path": "bench_loss.bench_loss"}
        settings[f"{LOSS}kwargs.objective"] = json.dumps(active_knobs(objective))
        lost -= carried
    if lost:
        sys.exit(f"prime-rl cannot express these settings of the objective: {', '.join(sorted(lost))}")
    return settings


def settings_of(config: dict, rows: list[dict]) -> dict:
    """All settings of a cell. rows: its prompts."""
    knobs, done, output = config["knobs"], config["done"]["step"], Path(config["output"])
    given = {name.removeprefix("objective."): knobs[name] for name in knobs if name.startswith("objective.")}
    for knob, only in {"rollout.sampler": "policy", "train.updates_per_rollout": 1, "train.epochs": 1}.items():
        if knobs[knob] != only:
            sys.exit(f"prime-rl has no {knob}={knobs[knob]}, only {only}")
    has_tokens = config["budget"]["generated_tokens"] or config["budget"]["trained_tokens"]  # any step may be the last
    width = max(len(row["tokens"]) for row in rows) + knobs["rollout.max_completion_tokens"]
    return {
        **objective_settings(with_overrides(Objective(aggregation=given["aggregation"]), given)),
        **{setting: knobs[knob] for setting, knob in RL.plain.items() if knob in knobs},
        "max_steps": config["budget"]["steps"],
        "seq_len": width,
        "output_dir": str(output),
        "run.name": "run",
        "model.name": config["model"],
        **({} if isinstance(rows[0]["prompt"], list) else {"tokenizer.chat_template": NO_ROLES}),
        "orchestrator.renderer.name": "default",
        "orchestrator.batch_size": knobs["rollout.prompts_per_step"] * knobs["rollout.samples_per_prompt"],
        "orchestrator.monitors.file.path": "orchestrator.jsonl",
        "trainer.monitors.file.path": "trainer.jsonl",
        "inference.vllm.max_model_len": width,
        "inference.vllm.seed": config["seed"] * 1_003 + done,
        "weight_broadcast.type": "filesystem",  # writes what transformers reads
        "ckpt.interval": 1 if has_tokens else math.gcd(config["checkpoint_every"], config["evaluate_every"]),
        **({"resume.dir": f"{config['resume']}/step_{done}"} if config["resume"] else {}),
    }


def source_of(config: dict) -> dict:
    """The environment: the prompts in their order, and bench's grader."""
    return {
        "name": "bench",
        "env.taskset.id": "bench_taskset",
        "env.taskset.prompts": config["prompts"],
        "env.taskset.graded_as": config["knobs"]["task.train"],
        "env.agent.harness.id": "null",
        "env.agent.runtime.type": "subprocess",
    }


def require_same_tokens(config: dict, rows: list[dict]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    for row in rows:
        is_text = isinstance(row["prompt"], str)
        messages = [{"role": "user", "content": row["prompt"]}] if is_text else row["prompt"]
        template = {"chat_template": NO_ROLES} if is_text else {}
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **template)
        if ids != row["tokens"]:
            sys.exit(f"prime-rl encodes the prompt of {row['problem_id']} as {ids}, the evaluation as {row['tokens']}")


def keep(step: int, run: Path, output: Path, model: str) -> str:
    """The checkpoint of a step as a folder of its own, with what prime-rl needs to resume."""
    folder = output / f"step-{step}"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    # Inference may still read these weights.
    shutil.copytree(run / "broadcasts" / f"step_{step}", folder, copy_function=os.link, dirs_exist_ok=True)
    (run / "checkpoints" / f"step_{step}").rename(folder / f"step_{step}")
    for old in run.glob("broadcasts/step_*"):
        if int(old.name.removeprefix("step_")) < step - 2:
            shutil.rmtree(old)
    return folder.name


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    output, done, budget, run = Path(config["output"]), config["done"], config["budget"], Path(config["output"], "run")
    rows = [json.loads(line) for line in Path(config["prompts"]).read_text().splitlines()]
    settings = settings_of(config, rows)
    require_same_tokens(config, rows)
    lines = [PRIME_RL.line(*pair) for pair in settings.items()]
    lines += ["[[orchestrator.train.source]]", *(PRIME_RL.line(*pair) for pair in source_of(config).items())]
    (output / "rl.toml").write_text("\n".join(lines) + "\n")
    argv = [sys.executable, "-m", "prime_rl.entrypoints.rl", "@", str(output / "rl.toml")]
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    prime = subprocess.Popen([*argv, *config["args"].get("overrides", [])], env={**os.environ, "PYTHONPATH": path})
    tokens, trained, step = done["generated_tokens"], done["trained_tokens"], done["step"] + 1
    most_tokens, most_trained = (budget[name] or math.inf for name in ("generated_tokens", "trained_tokens"))
    last, model = budget["steps"], config["model"]
    with (output / "metrics.jsonl").open("w", buffering=1) as metrics:
        while step > last or (tokens < most_tokens and trained < most_trained):
            code, found = prime.poll(), {}
            for log in (path for path in (run / "orchestrator.jsonl", run / "trainer.jsonl") if path.exists()):
                for line in log.read_text().splitlines(keepends=True):
                    if line.endswith("\n") and (row := json.loads(line))["step"] >= step:
                        found.setdefault(row["step"], {"loss/mean": math.nan, "optim/grad_norm": math.nan}).update(row)
            while all(name in found.get(step, {}) for name in NEEDED):
                row = found[step]  # prime-rl leaves out what is not finite
                tokens += round(row["train/agg/all/num_output_tokens/mean"] * row["progress/rollouts"])
                trained += row["progress/output_tokens"]
                metrics.write(json.dumps({**row, "generated_tokens": tokens, "trained_tokens": trained}) + "\n")
                if step % settings["ckpt.interval"] == 0 and step < last:
                    metrics.write(json.dumps({"step": step, "checkpoint": keep(step, run, output, model)}) + "\n")
                step += 1
            if code == 0 and step > last:  # prime-rl writes the last one after its row
                metrics.write(json.dumps({"step": last, "checkpoint": keep(last, run, output, model)}) + "\n")
            if code is not None:
                sys.exit(code)
            time.sleep(0.2)
    prime.terminate()
    prime.wait()


if __name__ == "__main__":
    main()
