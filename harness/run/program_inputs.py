"""The inputs of a program, step by step: the prompts or pairs that bench itself would train on for the spec."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from evals.prompts import get_template
from evals.tasks.base import Problem
from harness.config.rollout import DatasetPairs, PolicyPairs
from harness.config.run_spec import RunSpec
from harness.engines.base import make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.run.encoded_pairs import load_pairs
from harness.run.learning.pairs import pair_up
from harness.run.learning.rollouts import Rollouts
from harness.run.prompts import CompletionLimit, PromptOrder, prompt_order, read_correct_counts, training_prompts
from harness.training.preference_update import PairBatch
from harness.training.sequences import Sequences


class PairRow(TypedDict):
    """A row of a program's pairs as token ids; see `harness.trainers.contract.PAIR_ROW`."""

    step: int
    generated_tokens: int
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


PromptsOfStep = Callable[[int], list[Problem]]


def has_prompts(spec: RunSpec) -> bool:
    """Return whether the spec trains on prompts. It does not if its pairs come from a data set."""
    return spec.pairs.type != "dataset"


def prompts_by_step(spec: RunSpec, inputs: Mapping[str, Path]) -> PromptsOfStep:
    """Return a function that maps a step (from 1) to its prompts. It returns [] if pairs come from a data set.

    inputs: the results of the cell's stages.
    """
    if not has_prompts(spec):
        return lambda step: []
    order, count, steps = _order(spec, inputs), spec.rollout.prompts_per_step, spec.train.steps
    # Progress counts only steps, because the program's tokens are unknown when its prompts are written.
    return lambda step: order.draw(step, count, (step - 1) / steps)


def write_prompts(path: Path, spec: RunSpec, prompts: PromptsOfStep, start: LanguageModel) -> None:
    """Write the prompt rows of all steps, in the form of `harness.trainers.contract.PROMPT_ROW`."""
    template = get_template(spec.task.template)
    with path.open("w", encoding="utf-8") as handle:
        for step in range(1, spec.train.steps + 1):
            for problem in prompts(step):
                prompt = template.ask(problem)
                row = {
                    "step": step,
                    "problem_id": problem.id,
                    "prompt": prompt,
                    "tokens": start.encode(prompt),
                    "answer": problem.answer,
                }
                handle.write(json.dumps(row) + "\n")


def _order(spec: RunSpec, inputs: Mapping[str, Path]) -> PromptOrder:
    rates = read_correct_counts(inputs["pass_rates"]) if "pass_rates" in inputs else {}
    return prompt_order(spec.task, training_prompts(spec, rates), spec.seed)


def pairs_by_step(spec: RunSpec, inputs: Mapping[str, Path], start: LanguageModel) -> Iterator[list[PairRow]]:
    """Yield the rows of each step.

    inputs: the results of the cell's stages.
    start: the starting weights. They sample the completions of policy pairs, with the same noise as bench's own
    training.
    Raises RefusedError for a step without any pair.
    """
    if isinstance(spec.pairs, DatasetPairs):
        encoded = load_pairs(inputs["pairs"])
        for step in range(1, spec.train.steps + 1):
            pairs = encoded.of_step(step, spec.pairs.pairs_per_step, spec.seed)
            # A fixed set of pairs needs no generated tokens.
            yield _rows(step, 0, encoded.batch(pairs))
    elif isinstance(spec.pairs, PolicyPairs):
        yield from _drawn(spec, spec.pairs, inputs, start)


def _drawn(
    spec: RunSpec, pairs: PolicyPairs, inputs: Mapping[str, Path], start: LanguageModel
) -> Iterator[list[PairRow]]:
    order, limit = _order(spec, inputs), CompletionLimit(spec.rollout)
    rollouts = Rollouts(spec, start, make_engine(spec.rollout, start))
    generated_tokens = 0
    for step in range(1, spec.train.steps + 1):
        batch = rollouts.gather(step, (step - 1) / spec.train.steps, order, limit.tokens)
        generated_tokens += batch.generated_tokens
        paired, _ = pair_up(batch, pairs, spec.seed, step)
        if not len(paired):
            raise RefusedError("run.step_without_pair", step=step)
        yield _rows(step, generated_tokens, PairBatch.of_rows(batch.sequences, batch.groups, paired))


def _rows(step: int, generated_tokens: int, pairs: PairBatch) -> list[PairRow]:
    sides = zip(pairs.chosen.prompts, _completions(pairs.chosen), _completions(pairs.rejected), strict=True)
    return [
        PairRow(step=step, generated_tokens=generated_tokens, prompt=list(prompt), chosen=better, rejected=worse)
        for prompt, better, worse in sides
    ]


def _completions(sequences: Sequences) -> list[list[int]]:
    rows: list[list[int]] = sequences.completions.tolist()
    return [row[:length] for row, length in zip(rows, sequences.lengths.tolist(), strict=True)]
