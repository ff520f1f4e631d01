"""Completions that are sampled in slices, one per step (`rollout.partial`; Kimi k1.5, 2501.12599, section 2.6.2).

An unfinished completion continues in the next step, under newer weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.nn.utils.rnn import pad_sequence

from evals.tasks.base import Problem
from harness.config.rollout import Slices
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, GenerationCost, SamplingParams
from harness.models.language_model import LanguageModel
from harness.random_keys import random_key
from harness.run.learning.writers import Writer, require_finite
from harness.training.batch import Batch
from harness.training.states import TrainerState


@dataclass(frozen=True)
class Begun:
    """A completion in progress. Its lists have equal lengths."""

    step: int
    """The step in which its prompt was drawn."""
    example: int
    sample: int
    problem: Problem
    prompt: list[int]
    """Token ids."""
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    """The log-prob of each token under the weights that sampled it."""
    weights_steps: list[int] = field(default_factory=list)
    """For each token, the step after which the policy had the weights that sampled the token."""
    ended: bool = False
    """True if it ended by itself, before reaching a limit."""

    @property
    def group(self) -> tuple[int, int]:
        """An id of its prompt."""
        return self.step, self.example


class InSlices(Writer):
    """Samples, in each step, one slice of every unfinished completion.

    A prompt is trained on in the step in which the last of its completions ends. Each step begins as many prompts as
    without slices, and in the long run as many are trained on per step.
    """

    def __init__(
        self,
        spec: RunSpec,
        language_model: LanguageModel,
        engine: Engine,
        partial: Slices,
        weights_of: Callable[[int], int],
    ) -> None:
        """Create the writer.

        weights_of: maps a step to the earlier step after which the policy had the weights that this step samples from.
        """
        super().__init__(spec, language_model, engine)
        self._weights_of = weights_of
        self._samples, self._limit_tokens = spec.rollout.samples_per_prompt, spec.rollout.max_completion_tokens
        rollout = spec.rollout
        self._params = SamplingParams(partial.slice_tokens, rollout.temperature, rollout.top_p, rollout.top_k, ())
        self.under_way: list[Begun] = []
        """The completions of prompts that were begun but not trained on yet. Completions of one prompt are adjacent."""
        self._after_step: list[Begun] = []

    def draw(self, problems: Sequence[Problem], step: int, max_completion_tokens: int, first_example: int = 0) -> Batch:
        """Begin a step's prompts, and sample a slice of all unfinished completions.

        Returns the completions of finished prompts, in the order in which they were begun. `under_way` changes only in
        `learned`. If no prompt is finished, further slices are sampled at once, because the step would otherwise change
        no weight. Raises as `Writer.draw`.
        """
        started_s = time.perf_counter()
        rows = list(self.under_way)
        for example, problem in enumerate(problems, start=first_example):
            prompt = self.encode(problem)
            rows += [Begun(step, example, sample, problem, prompt) for sample in range(self._samples)]
        cost, drawn_tokens = GenerationCost(), 0
        waiting = {row.group for row in rows}
        # Repeat until at least one prompt has no unfinished completion left.
        while len(waiting) == len(rows) // self._samples:
            fresh = [at for at, row in enumerate(rows) if not row.tokens]
            going_on = [at for at, row in enumerate(rows) if row.tokens and self._goes_on(row)]
            # New completions of a prompt share its prefill. Those that continue have different prefixes.
            for some, together in ((fresh, self._samples), (going_on, 1)):
                if some:
                    drawn = self._draw_slice(rows, some, together, self._weights_of(step))
                    cost, drawn_tokens = cost + drawn.cost, drawn_tokens + int(drawn.lengths.sum())
            waiting = {row.group for row in rows if self._goes_on(row)}
        # This is applied in `learned`: a checkpoint before the update must contain the state before the step.
        self._after_step = [row for row in rows if row.group in waiting]
        return replace(
            self._batch([row for row in rows if row.group not in waiting], step),
            cost=cost,
            drawn_tokens=drawn_tokens,
            rollout_s=time.perf_counter() - started_s,
        )

    def _goes_on(self, row: Begun) -> bool:
        return not row.ended and len(row.tokens) < self._limit_tokens

    def _draw_slice(self, rows: list[Begun], some: Sequence[int], together: int, weights_step: int) -> Completions:
        """Extend some rows, given by their indices, by one slice each.

        together: the number of adjacent rows that share a prompt and have no tokens yet; 1 for rows that continue.
        """
        asked = [[*rows[at].prompt, *rows[at].tokens] for at in some[::together]]
        keys = torch.tensor([self._key(rows[at]) for at in some]).view(-1, together)
        drawn = self._engine.generate(asked, keys, self._params)
        require_finite(drawn.logps)
        lengths, cut = drawn.lengths.tolist(), drawn.truncated.tolist()
        for place, at in enumerate(some):
            before, length = rows[at], lengths[place]
            rows[at] = replace(
                before,
                tokens=before.tokens + drawn.tokens[place, :length].tolist(),
                logps=before.logps + drawn.logps[place, :length].tolist(),
                weights_steps=before.weights_steps + [weights_step] * length,
                ended=not cut[place],
            )
        return drawn

    def _key(self, row: Begun) -> int:
        """Return the noise key of a slice.

        The first slice has the same key as a completion without slices. Each later slice has its own key, because the
        noise of a key is counted from the first token of a call.
        """
        before = len(row.tokens)
        example = f"{row.example}/{before}" if before else row.example
        return random_key(self._spec.seed, "rollout", row.step, example, row.sample)

    def _batch(self, rows: Sequence[Begun], step: int) -> Batch:
        drawn = Completions.of(
            [row.tokens for row in rows],
            [row.logps for row in rows],
            [not row.ended for row in rows],
            self._language_model.pad_token_id,
        )
        newest = step - 1
        # The age of each token in steps; 0 for tokens of the newest weights.
        ages = [torch.tensor([newest - one for one in row.weights_steps]) for row in rows]
        return replace(
            Batch.of_completions([row.prompt for row in rows[:: self._samples]], drawn, 0, self._limit_tokens),
            problems=[row.problem for row in rows],
            steps_old=pad_sequence(ages, batch_first=True),
        )

    def learned(self) -> None:
        self.under_way = self._after_step

    def metrics(self) -> dict[str, float]:
        return {"staleness/prompts_under_way": len(self.under_way) // self._samples}

    def state_dict(self) -> TrainerState:
        # On resume, prompts are encoded again and problems are looked up by id.
        return {"under_way": [{**vars(row), "prompt": [], "problem": row.problem.id} for row in self.under_way]}

    def load_state_dict(self, state: TrainerState, problems: Sequence[Problem]) -> None:
        by_id = {problem.id: problem for problem in problems}
        self.under_way = []
        for row in state["under_way"]:
            problem = by_id[row["problem"]]
            self.under_way.append(Begun(**{**row, "problem": problem, "prompt": self.encode(problem)}))
