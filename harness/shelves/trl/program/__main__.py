"""Builds TRL's trainer from the config file, and trains."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import trl
from accelerate import PartialState
from datasets import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments

from algorithms import Objective
from harness import plugins
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.records.files import read_jsonl, read_object, typed_rows
from harness.run.program_inputs import PairRow
from harness.shelves.trl.program.rewards import Rewards
from harness.shelves.trl.program.steps import StepCompletions, Steps
from harness.shelves.trl.program.trainers import Dpo, Grpo, Kto, Rloo
from harness.shelves.trl.trainers import ProgramArguments
from harness.trainers.contract import ProgramConfig

TRAINERS: dict[str, tuple[type[Trainer], type[TrainingArguments]]] = {
    "GRPOTrainer": (Grpo, trl.GRPOConfig),
    "RLOOTrainer": (Rloo, trl.RLOOConfig),
    "DPOTrainer": (Dpo, trl.DPOConfig),
    "KTOTrainer": (Kto, trl.KTOConfig),
}


class PromptRow(TypedDict):
    """The fields of a row of prompts that are read here (`harness.trainers.contract.PROMPT_ROW`)."""

    step: int
    problem_id: str
    tokens: list[int]


def main() -> None:
    warnings.simplefilter("ignore", FutureWarning)  # of one pinned library about another
    config = ProgramConfig.model_validate(read_object(Path(sys.argv[1])))
    arguments = ProgramArguments.model_validate(config.args)
    # The spec can be read only once its plug-ins are known.
    plugins.use(arguments.plugins, [Path(folder) for folder in arguments.folders])
    spec = RunSpec.model_validate(arguments.spec)
    # The optimiser works on float32 weights; with bf16 they are rounded for each pass.
    start = load_model(
        f"path:{config.model}",
        chat_template=spec.model.chat_template,
        trust_remote_code=spec.model.trust_remote_code,
    )
    start.model.generation_config.eos_token_id = start.eos_token_ids
    trainer = (on_prompts if isinstance(spec.objective, Objective) else on_pairs)(config, arguments, spec, start)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=config.resume)


def on_prompts(config: ProgramConfig, arguments: ProgramArguments, spec: RunSpec, start: LanguageModel) -> Trainer:
    """Build a trainer that samples completions."""
    assert config.prompts is not None
    rows = typed_rows(Path(config.prompts), read_jsonl(Path(config.prompts)), PromptRow)
    # The longest prompt and the completion limit together bound every row.
    longest = max(len(row["tokens"]) for row in rows) + spec.rollout.max_completion_tokens
    completions = spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt
    processes, updates = PartialState().num_processes, spec.train.updates_per_rollout
    passes = passes_of(completions, updates * processes, longest, spec.train.micro_batch_tokens)
    rewards = Rewards(spec, start)

    def drawn(step: int) -> StepCompletions:
        learned = rewards.trained_tokens * spec.train.epochs
        return StepCompletions(rewards.generated_tokens, learned, rewards.metrics(), rewards.rollouts(step))

    return made(
        config,
        arguments,
        spec,
        start,
        [{"prompt": row["tokens"], "problem_id": row["problem_id"], "step": row["step"]} for row in rows],
        Steps(config, spec.optimizer_steps_per_rollout, drawn),
        {
            "per_device_train_batch_size": completions // (updates * processes * passes),
            "gradient_accumulation_steps": passes,
            "steps_per_generation": updates * passes,
        },
        reward_funcs=rewards.reward,
    )


def on_pairs(config: ProgramConfig, arguments: ProgramArguments, spec: RunSpec, start: LanguageModel) -> Trainer:
    """Build a trainer that trains on the pairs of each step in one optimiser step."""
    assert config.pairs is not None
    pairs = typed_rows(Path(config.pairs), read_jsonl(Path(config.pairs)), PairRow)
    # groupby needs equal steps next to each other, as bench writes them.
    steps = [list(rows) for _, rows in itertools.groupby(pairs, key=lambda row: row["step"])]
    kind, _ = TRAINERS[arguments.trainer]
    examples = [list(sided(rows) if issubclass(kind, Kto) else map(paired, rows)) for rows in steps]
    ends = list(itertools.accumulate(map(len, examples), initial=0))
    kind.batches = [list(range(first, end)) for first, end in itertools.pairwise(ends)]

    def drawn(step: int) -> StepCompletions:
        rows = steps[step - 1]
        # The recorded number is cumulative, so the step's own tokens are a difference.
        before = steps[step - 2][0]["generated_tokens"] if step > 1 else 0
        learned = sum(len(row["chosen"]) + len(row["rejected"]) for row in rows)
        return StepCompletions(rows[0]["generated_tokens"] - before, learned, {}, [])

    return made(
        config,
        arguments,
        spec,
        start,
        [example for of_step in examples for example in of_step],
        Steps(config, 1, drawn),
        {"per_device_train_batch_size": len(examples[0])},
    )


def made(
    config: ProgramConfig,
    arguments: ProgramArguments,
    spec: RunSpec,
    start: LanguageModel,
    examples: list[dict[str, object]],
    follow: Steps,
    layout: dict[str, int],
    **others: object,
) -> Trainer:
    """Build the trainer. layout: settings that follow from the prompts and the processes."""
    kind, settings = TRAINERS[arguments.trainer]
    kind.train_spec = spec.train
    given = {**arguments.settings, **layout, "output_dir": config.output, "use_cpu": config.device == "cpu"}
    return kind(
        model=start.model,
        processing_class=start.tokenizer,
        args=settings(**given),
        train_dataset=Dataset.from_list(examples),
        callbacks=[follow],
        **others,
    )


def paired(row: PairRow) -> dict[str, object]:
    """Convert a pair to DPOTrainer's format."""
    return {"prompt_ids": row["prompt"], "chosen_ids": row["chosen"], "rejected_ids": row["rejected"]}


def sided(rows: Sequence[PairRow]) -> Iterator[dict[str, object]]:
    """Yield each side of a step's pairs, in KTOTrainer's format.

    As in bench, the zero point is measured on the chosen completion of the next pair with another prompt. Raises
    RefusedError if all pairs have the same prompt.
    """
    for place, row in enumerate(rows):
        later = (rows[(place + ahead) % len(rows)] for ahead in range(1, len(rows)))
        unrelated = next((other["chosen"] for other in later if other["prompt"] != row["prompt"]), None)
        if unrelated is None:
            raise RefusedError("shelves.trl.pairs_of_one_prompt", step=row["step"])
        for completion, is_better in ((row["chosen"], True), (row["rejected"], False)):
            about = {"label": is_better, "KL_completion_ids": unrelated}
            yield {"prompt_ids": row["prompt"], "completion_ids": completion, **about}


def passes_of(rows: int, shares: int, longest_tokens: int, most_tokens: int) -> int:
    """Return the number of equal passes into which each share of the rows is split.

    It is the fewest that keep to the most tokens, at worst one row per pass. Raises RefusedError if the rows cannot be
    shared evenly.
    """
    share, left = divmod(rows, shares)
    if left:
        raise RefusedError("shelves.trl.uneven_shares", n_completions=rows, n_shares=shares)
    sizes = (count for count in range(1, share) if share % count == 0)
    return next((count for count in sizes if share // count * longest_tokens <= most_tokens), share)


if __name__ == "__main__":
    try:
        main()
    except RefusedError as error:
        sys.exit(f"error: {error}")
