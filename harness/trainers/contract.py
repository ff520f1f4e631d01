"""The contract between bench and a program that trains a cell: what the program receives, and what it writes.

`bench show trainer` prints it. VERSION must be increased if a program that was correct might not be correct afterwards.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from harness.settings import Settings

VERSION = 1
CONFIG_FILE, PROMPTS_FILE, PAIRS_FILE, METRICS_FILE, ROLLOUTS_FILE = (
    "config.json",
    "prompts.jsonl",
    "pairs.jsonl",
    "metrics.jsonl",
    "rollouts.jsonl",
)
STEP, CHECKPOINT = "step", "checkpoint"
GENERATED, TRAINED = "generated_tokens", "trained_tokens"


class Done(Settings):
    """The steps and tokens before the checkpoint to resume from; zeros at the start."""

    step: int = Field(ge=0)
    generated_tokens: int = Field(ge=0)
    trained_tokens: int = Field(ge=0)


class Budget(Settings):
    """The limits of the program. It ends with the step in which the first of them is reached."""

    steps: int = Field(
        ge=1,
        description="number of steps; a step is an optimiser step or a rollout batch, and has one row in metrics.jsonl",
    )
    generated_tokens: int | None = Field(
        None, ge=1, description=("completion tokens sampled in training; null = no limit")
    )
    trained_tokens: int | None = Field(None, ge=1, description="completion tokens trained on; null = no limit")


class ProgramConfig(Settings):
    """The config file."""

    contract: int = Field(VERSION, description="the version of this contract")
    model: str = Field(description="folder of the starting weights (after any cold start) and the tokenizer")
    prompts: str | None = Field(
        description="JSONL file with one training prompt per line, in the order given by the seed; null if pairs come "
        "from a data set"
    )
    pairs: str | None = Field(
        None,
        description="JSONL file with one pair of completions per line, in the same order; null unless the program "
        "reads `pairs`",
    )
    output: str = Field(description="folder for everything the program writes; each start has a separate folder")
    resume: str | None = Field(None, description="checkpoint folder to continue from; null = start from the beginning")
    done: Done = Field(description="the steps and tokens up to that checkpoint")
    seed: int = Field(ge=0)
    budget: Budget
    checkpoint_every: int = Field(
        ge=1, description=("write a checkpoint to resume from at each multiple of this number of steps")
    )
    evaluate_every: int = Field(
        ge=0,
        description="also write a checkpoint to be evaluated at each multiple of this number of steps; 0 = only at the "
        "end",
    )
    device: str = Field(description="cpu or cuda")
    args: dict[str, Any] = Field({}, description="trainer.args")
    knobs: dict[str, Any] = Field({}, description="knobs of bench that apply to the program, by dotted name")


PROMPT_ROW = {
    "step": "the step that trains on it, from 1",
    "problem_id": "names the problem in rollouts.jsonl",
    "prompt": "text, or a list of chat messages",
    "tokens": "the same as token ids, as the evaluation encodes prompts",
    "answer": "the reference answer; null where the task has none",
}
PAIR_ROW = {
    "step": "the step that trains on it, from 1; every step has at least one pair",
    "generated_tokens": "for the step's row of metrics: the completion tokens that bench has drawn so far to make the "
    "pairs; 0 for pairs from a data set",
    "prompt": "token ids",
    "chosen": "token ids of the better completion, with the end-of-sequence token",
    "rejected": "the same for the worse one",
}
WRITES = {
    METRICS_FILE: (
        "A row a step: `step`, one more than in the row before; `generated_tokens`, the completion tokens drawn so far "
        "in the whole cell (0 if it draws none); `trained_tokens`, those learned from so far, if budget.trained_tokens "
        "is set; and any metrics, which are numbers or null. Only one process writes it, and flushes each row."
    ),
    "checkpoints": (
        'Folders below output that `save_pretrained` writes, weights in safetensors. A row {"step": 10, "checkpoint": '
        '"step-10"} in metrics.jsonl says that one is whole; what else the program needs to resume lies in it too. One '
        "is due at each multiple of checkpoint_every and evaluate_every, and after the last step. Older ones are "
        "deleted when they are no longer needed."
    ),
    ROLLOUTS_FILE: (
        "Optional, a row a completion: `step`, `problem_id`, `text`, `reward` (null if it was not scored) and "
        "`correct`. The rows of a step are written before its row in metrics.jsonl."
    ),
    "exit": (
        "Exit with code 0 after the last checkpoint. SIGTERM asks the program to stop: it may write a checkpoint "
        "within 5 s, and is killed with all its processes after 6 s. Standard output and error go to the cell's log."
    ),
}


def contract_document() -> dict[str, Any]:
    """Return the document that `bench show trainer` prints."""
    return {
        "contract": VERSION,
        "config_file": ProgramConfig.model_json_schema(),
        "prompts_row": PROMPT_ROW,
        "pairs_row": PAIR_ROW,
        "the_program_writes": WRITES,
    }
