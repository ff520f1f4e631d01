"""Supervised learning of the answers: the shortest program that keeps to the contract of `bench show trainer`."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

config = json.loads(Path(sys.argv[1]).read_text())
output, last = Path(config["output"]), config["budget"]["steps"]
folder = config["resume"] or config["model"]
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
optimizer = torch.optim.SGD(model.parameters(), lr=config["args"]["lr"])  # it has no state to save
due = (config["checkpoint_every"], config["evaluate_every"])
prompts = [json.loads(line) for line in Path(config["prompts"]).read_text().splitlines()]
with (output / "metrics.jsonl").open("w", buffering=1) as metrics:
    for step in range(config["done"]["step"] + 1, last + 1):
        losses = []
        for row in (row for row in prompts if row["step"] == step):
            answer = tokenizer(f"#{row['answer']}{tokenizer.eos_token}", add_special_tokens=False)["input_ids"]
            ids = torch.tensor([row["tokens"] + answer])
            losses.append(model(ids, labels=ids.index_fill(1, torch.arange(len(row["tokens"])), -100)).loss)
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.write(json.dumps({"step": step, "generated_tokens": 0, "loss": loss.item()}) + "\n")
        if step == last or any(every and step % every == 0 for every in due):
            for part in (model, tokenizer):
                part.save_pretrained(output / f"step-{step}")
            metrics.write(json.dumps({"step": step, "checkpoint": f"step-{step}"}) + "\n")
