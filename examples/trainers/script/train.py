"""REINFORCE with a leave-one-out baseline, in plain torch. It keeps to the contract of `bench show trainer`."""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path, required=True)
config = json.loads(parser.parse_args().config.read_text())
assert config["contract"] == 1, f"written for contract 1, not {config['contract']}"
args, done, budget, output = config["args"], config["done"], config["budget"], Path(config["output"])
samples = args.get("samples", 8)

folder = config["resume"] or config["model"]
model = AutoModelForCausalLM.from_pretrained(folder).to(config["device"]).eval()  # no dropout
tokenizer = AutoTokenizer.from_pretrained(folder)
optimizer = torch.optim.AdamW(model.parameters(), lr=config["knobs"]["train.learning_rate"], weight_decay=0.0)
if config["resume"]:
    optimizer.load_state_dict(torch.load(Path(folder, "optimizer.pt"), weights_only=True))

prompts: dict[int, list[dict]] = {}
for line in Path(config["prompts"]).read_text().splitlines():
    prompts.setdefault(json.loads(line)["step"], []).append(json.loads(line))


def write(name: str, row: dict) -> None:
    with (output / name).open("a") as file:
        file.write(json.dumps(row) + "\n")


step, generated = done["step"], done["generated_tokens"]
most_generated = budget["generated_tokens"] or float("inf")
while step < budget["steps"] and generated < most_generated:
    step += 1
    torch.manual_seed(config["seed"] * 1_000_003 + step)  # a step's noise is the same after a resume
    rewards: list[bool] = []
    for prompt in prompts[step]:
        ids = torch.tensor([prompt["tokens"]] * samples, device=model.device)
        drawn = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=40)
        completions = drawn[:, ids.shape[1] :]
        ends = completions == tokenizer.eos_token_id
        mask = (ends.cumsum(1) - ends.int()) == 0  # up to and with the first end
        texts = tokenizer.batch_decode(completions * mask, skip_special_tokens=True)
        correct = [text.rpartition("#")[2].strip() == prompt["answer"] for text in texts]
        reward = torch.tensor(correct, dtype=torch.float32, device=model.device)
        advantage = (reward - reward.mean()) * samples / (samples - 1)
        logps = model(drawn).logits[:, ids.shape[1] - 1 : -1].log_softmax(-1)
        logps = logps.gather(-1, completions[..., None])[..., 0] * mask
        (-(logps.sum(1) * advantage).sum() / mask.sum() / len(prompts[step])).backward()
        rewards += correct
        generated += int(mask.sum())
        for text, right in zip(texts, correct, strict=True):
            completion = {"problem_id": prompt["problem_id"], "text": text, "reward": float(right), "correct": right}
            write("rollouts.jsonl", {"step": step, **completion})
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    metrics = {"accuracy": sum(rewards) / len(rewards), "grad_norm": float(norm)}
    write("metrics.jsonl", {"step": step, "generated_tokens": generated, **metrics})
    is_last = step >= budget["steps"] or generated >= most_generated
    if is_last or any(every and step % every == 0 for every in (config["checkpoint_every"], config["evaluate_every"])):
        model.save_pretrained(output / f"step-{step}")
        tokenizer.save_pretrained(output / f"step-{step}")
        torch.save(optimizer.state_dict(), output / f"step-{step}" / "optimizer.pt")
        write("metrics.jsonl", {"step": step, "checkpoint": f"step-{step}"})
