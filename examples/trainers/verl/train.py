"""Trains a cell with verl: writes its settings, starts its PPO trainer, and converts its output to what the contract of
`bench show trainer` asks for. It runs in verl's environment, which has bench too; bench_in_verl.py runs in verl.
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

from algorithms import Objective, active_knobs, with_overrides
from algorithms.dialects import translate
from algorithms.elsewhere.verl import LOSS, PPO_TRAINER, VERL
from algorithms.elsewhere.verl_terms import ACTOR, OVERLONG

HERE = Path(__file__).resolve().parent
OURS = {
    "algorithm.adv_estimator": ("baseline", "scale", "scale_ddof", "scale_eps", "advantage_sign", "pass_k"),
    f"{LOSS}loss_mode": ("ratio", "rule", "sequence_penalty", f"{LOSS}loss_mode"),
}  # settings that can name bench's function -> what it decides
NEEDS_MORE = ("critic", "random_peer", "mini_batch_std")
NO_ROLES = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
WORKERS = "+ray_kwargs.ray_init.runtime_env.env_vars."


def objective_settings(objective: Objective, updates: int, limit_tokens: int) -> dict:
    """verl's settings for an objective; exits if neither verl nor bench's functions can express it."""
    translation = translate(VERL, objective)
    settings = dict(translation.written.settings)
    lost = {name for name in translation.lost if updates > 1 or name not in translation.inert}
    lost |= {"zero_std"} if objective.zero_std == "refill" else set()  # verl counts no tokens of groups it replaces
    is_enough = {  # what verl hands to such a function
        "algorithm.adv_estimator": {objective.baseline, objective.scale}.isdisjoint(NEEDS_MORE),
        f"{LOSS}loss_mode": objective.select.type == objective.sampler_correction.type == "none",
    }
    for setting, decides in OURS.items():
        carried = {name for name in lost if name in decides or name.split(".")[0] in decides}
        if carried and is_enough[setting]:
            settings[setting], lost = "bench", lost - carried
    if objective.overlong.type == "soft":
        cache_tokens = round(objective.overlong.cache_frac * limit_tokens)
        settings |= {"reward.reward_manager.name": "dapo", "+reward.reward_kwargs.max_resp_len": limit_tokens}
        buffer = {"enable": True, "len": cache_tokens, "penalty_factor": objective.overlong.factor, "log": False}
        settings |= {f"+{OVERLONG}{name}": value for name, value in buffer.items()}
    else:
        lost |= translation.written.beside.keys()
    if lost:
        sys.exit(f"verl cannot express these settings of the objective: {', '.join(sorted(lost))}")
    return settings


def settings_of(config: dict, rows: list[dict]) -> dict:
    """All settings of a cell. rows: its prompts."""
    knobs, done, output, resume = config["knobs"], config["done"]["step"], Path(config["output"]), config["resume"]
    given = {name.removeprefix("objective."): knobs[name] for name in knobs if name.startswith("objective.")}
    objective = with_overrides(Objective(aggregation=given["aggregation"]), given)
    if knobs["rollout.sampler"] != "policy":
        sys.exit(f"verl has no rollout.sampler={knobs['rollout.sampler']}, only policy")
    has_tokens = config["budget"]["generated_tokens"] or config["budget"]["trained_tokens"]  # any step may be the last
    updates, limit_tokens = knobs["train.updates_per_rollout"], knobs["rollout.max_completion_tokens"]
    return {
        **objective_settings(objective, updates * knobs["train.epochs"], limit_tokens),
        **{setting: knobs[knob] for setting, knob in PPO_TRAINER.plain.items() if knob in knobs},
        "actor_rollout_ref.model.path": config["model"],
        "actor_rollout_ref.model.external_lib": "bench_in_verl",
        "actor_rollout_ref.model.custom_chat_template": None if isinstance(rows[0]["prompt"], list) else NO_ROLES,
        "critic.model.path": config["model"],
        "critic.optim.lr": knobs["train.learning_rate"] * knobs.get("objective.critic.learning_rate_factor", 1),
        "data.train_files": str(output / "prompts.jsonl"),
        "data.val_files": str(output / "prompts.jsonl"),
        "data.shuffle": False,
        "data.max_prompt_length": max(len(row["tokens"]) for row in rows),
        f"{ACTOR}ppo_mini_batch_size": knobs["rollout.prompts_per_step"] // updates,
        f"{ACTOR}use_dynamic_bsz": True,
        f"{ACTOR}checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{ACTOR}checkpoint.load_contents": ["model", "optimizer", "extra"],
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.seed": config["seed"] * 1_000_003 + done,
        "reward.custom_reward_function.path": "pkg://bench_in_verl",  # a path would load, and register, it again
        "trainer.logger": ["console", "file"],
        "trainer.val_before_train": False,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": config["budget"]["steps"],
        "trainer.save_freq": 1 if has_tokens else math.gcd(config["checkpoint_every"], config["evaluate_every"]),
        "trainer.default_local_dir": str(output / "verl"),
        "trainer.resume_mode": "resume_path" if resume else "disable",
        "trainer.resume_from_path": resume and f"{resume}/global_step_{done}",
        f"{WORKERS}PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        f"{WORKERS}BENCH_OBJECTIVE": json.dumps(active_knobs(objective)),
        f"{WORKERS}VERL_FILE_LOGGER_PATH": str(output / "verl.jsonl"),
    }


def write_data(config: dict, rows: list[dict], template: str | None) -> None:
    """The prompts as verl reads them; exits if verl would encode one differently from the evaluation."""
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    tokenizer.chat_template = template or tokenizer.chat_template
    with Path(config["output"], "prompts.jsonl").open("w") as file:
        for row in rows:
            messages = row["prompt"] if template is None else [{"role": "user", "content": row["prompt"]}]
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            if ids != row["tokens"]:
                sys.exit(f"verl encodes the prompt of {row['problem_id']} as {ids}, the evaluation as {row['tokens']}")
            known = {"data_source": config["knobs"]["task.train"], "reward_model": {"ground_truth": row["answer"]}}
            file.write(json.dumps({"prompt": messages, **known}) + "\n")


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    output, done, budget = Path(config["output"]), config["done"], config["budget"]
    rows = [json.loads(line) for line in Path(config["prompts"]).read_text().splitlines()]
    settings, own = settings_of(config, rows), config["args"].get("overrides", [])
    if clash := [word for word in own if word.split("=")[0].lstrip("+~") in {name.lstrip("+") for name in settings}]:
        sys.exit(f"trainer.args.overrides sets what bench decides: {', '.join(clash)}")
    write_data(config, rows, settings["actor_rollout_ref.model.custom_chat_template"])
    overrides = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    verl = subprocess.Popen([sys.executable, "-m", "verl.trainer.main_ppo", *overrides, *own])
    drawn = config["knobs"]["rollout.prompts_per_step"] * config["knobs"]["rollout.samples_per_prompt"]
    most_tokens = min(budget[name] or math.inf for name in ("generated_tokens", "trained_tokens"))
    tokens, read = done["generated_tokens"], 0
    with (output / "metrics.jsonl").open("w", buffering=1) as metrics:
        while tokens < most_tokens:
            code, log = verl.poll(), output / "verl.jsonl"
            *lines, _ = log.read_bytes().split(b"\n") if log.exists() else [b""]
            for row in map(json.loads, lines[read:]):
                step, data = row["step"], row["data"]
                tokens += round(data["response_length/mean"] * drawn)
                numbers = {name: math.nan if value is None else value for name, value in data.items()}  # orjson's NaN
                counts = {"step": step, "generated_tokens": tokens, "trained_tokens": tokens}
                metrics.write(json.dumps(counts | numbers) + "\n")
                if step % settings["trainer.save_freq"] == 0 or step == budget["steps"]:
                    saved, folder = output / "verl" / f"global_step_{step}", output / f"step-{step}"
                    (saved / "actor" / "huggingface").rename(folder)
                    saved.rename(folder / saved.name)  # what verl needs to resume
                    metrics.write(json.dumps({"step": step, "checkpoint": folder.name}) + "\n")
            read = len(lines)
            if code is not None:
                sys.exit(code)
            time.sleep(0.2)
    verl.terminate()
    verl.wait()


if __name__ == "__main__":
    main()
