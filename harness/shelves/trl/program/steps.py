"""The contract for a run of TRL: rows of metrics, checkpoints when they are due, the end at the budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from harness.trainers.contract import METRICS_FILE, ROLLOUTS_FILE, Done, ProgramConfig


@dataclass(frozen=True)
class StepCompletions:
    """The completions of a step: their tokens, metrics and rows of rollouts.jsonl."""

    generated_tokens: int
    trained_tokens: int
    metrics: Mapping[str, float | None]
    rollouts: Sequence[Mapping[str, object]]


class Steps(TrainerCallback):  # type: ignore[misc]  # transformers is not checked
    """Follows a TRL trainer. A step is one rollout batch, with `updates` optimiser steps.

    drawn: returns the completions of a step, by its number. It is called in every process, since all must end together.
    """

    def __init__(self, config: ProgramConfig, updates: int, drawn: Callable[[int], StepCompletions]) -> None:
        self._config, self._updates, self._drawn = config, updates, drawn
        self._output = Path(config.output)
        self._done: Done = config.done
        self._row: dict[str, object] = {}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Count the step's tokens, and tell TRL whether to save or to stop. Acts only at the end of a rollout batch."""
        step, within = divmod(state.global_step, self._updates)
        if within:
            return
        drawn, budget = self._drawn(step), self._config.budget
        self._done = Done(
            step=step,
            generated_tokens=self._done.generated_tokens + drawn.generated_tokens,
            trained_tokens=self._done.trained_tokens + drawn.trained_tokens,
        )
        self._row = {**self._done.model_dump(), **drawn.metrics}
        if state.is_world_process_zero and drawn.rollouts:
            self._append(ROLLOUTS_FILE, drawn.rollouts)
        bounds = (
            (step, budget.steps),
            (self._done.generated_tokens, budget.generated_tokens),
            (self._done.trained_tokens, budget.trained_tokens),
        )
        is_over = any(most is not None and amount >= most for amount, most in bounds)
        every = (self._config.checkpoint_every, self._config.evaluate_every)
        control.should_training_stop = is_over
        control.should_save = is_over or any(often and step % often == 0 for often in every)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        """Write a row of metrics: TRL's own, with bench's columns over them."""
        if state.is_world_process_zero and self._row and logs and "loss" in logs:
            own = {name: value for name, value in logs.items() if isinstance(value, int | float) and name != "epoch"}
            self._append(METRICS_FILE, [{**own, **self._row}])
            # Cleared, so that a further log of the same step writes no second row.
            self._row = {}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if state.is_world_process_zero:
            self._append(METRICS_FILE, [{"step": self._done.step, "checkpoint": f"checkpoint-{state.global_step}"}])

    def _append(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        with (self._output / name).open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
