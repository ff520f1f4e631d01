"""Runs a probe: samples completions at frozen weights and measures every objective's gradient estimates on them.

Completions are sampled once for all objectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from evals.tasks.base import Problem
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine, make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, weights_digest
from harness.models.start import StartingPoint
from harness.random_keys import random_key
from harness.run.data_checks import require_room_for_completions
from harness.run.learning.rollouts import Rollouts
from harness.run.prompts import training_prompts
from harness.shelves.probe.design import REFERENCE_PARTS, Design, ProbePoint
from harness.shelves.probe.gradients import TokenWeights, gradients, token_weights
from harness.shelves.probe.moments import Array, EstimateTally, InnerProducts, gram
from harness.training.batch import Batch
from harness.training.checkpoint import load_latest
from harness.training.sequences import Scores, SequenceScorer

# Pools of different steps share no sample, so the reference is independent of what is compared with it.
_REFERENCE_STEP, _ESTIMATES_STEP = 0, 1

OnProgress = Callable[[int, int, str], None]
"""Called with the number of completions differentiated so far, their total, and what they are for."""


@dataclass(frozen=True)
class ProbeMeasurement:
    """The policy's identity and the inner products of all gradients."""

    weights_digest: str
    mean_reward: float
    """The mean over the completions behind the reference gradient."""
    reference: Array
    """[M, M] inner products of the reference estimates."""
    points: dict[ProbePoint, dict[str, InnerProducts]]


def measure(design: Design, policy: LanguageModel, on_progress: OnProgress) -> ProbeMeasurement:
    """Measure everything that the design asks for, at the policy's weights, which do not change.

    Raises RefusedError if no completion can be scored.
    """
    return _Probe(design, policy, on_progress).run()


def frozen_policy(spec: RunSpec, cell: Path | None) -> LanguageModel:
    """Load the spec's model, with the weights of the newest checkpoint of a cell's folder if one is given.

    Raises RefusedError for a model or a cell that is missing, or that does not fit the other or the prompts.
    """
    policy = StartingPoint().get(spec, spec.model.source)
    if cell is not None:
        checkpoint = load_latest(cell / "checkpoints")
        if checkpoint is None:
            raise RefusedError("shelves.probe.no_checkpoint", cell=cell, folder=cell / "checkpoints")
        if checkpoint.is_start:
            raise RefusedError("shelves.probe.checkpoint_of_start", cell=cell)
        if any(".lora_A." in name for name in checkpoint.weights):
            raise RefusedError("shelves.probe.checkpoint_of_adapters", cell=cell)
        try:
            policy.model.load_state_dict(checkpoint.weights)
        except RuntimeError:
            raise RefusedError(
                "shelves.probe.weights_do_not_fit", cell=cell, source=spec.model.source, spec=cell / "spec.json"
            ) from None
    require_room_for_completions(spec, policy)
    return policy


class _Probe:
    def __init__(self, design: Design, policy: LanguageModel, on_progress: OnProgress) -> None:
        self._design, self._policy, self._report = design, policy, on_progress
        # Prompts are sampled with replacement, so any number of problems will do.
        rollout = design.reference.rollout.model_copy(update={"prompts_per_step": 1})
        self._problems: Sequence[Problem] = training_prompts(
            design.reference.model_copy(update={"rollout": rollout}), {}
        )
        of_points = design.file.completions * len(design.points) * len(design.file.objectives)
        self._total = _completions(design.reference) + of_points
        self._done = 0

    def run(self) -> ProbeMeasurement:
        spec = self._design.reference
        pool = draw_pool(spec, spec.rollout.prompts_per_step, _REFERENCE_STEP, self._problems, self._policy)
        rollout = pool.rewarded(spec, self._policy)
        if rollout.rewards.isnan().all():
            raise RefusedError("shelves.probe.no_reward", completions=_completions(spec))
        # Each part holds whole prompts, so the parts are independent.
        part = _completions(spec) // REFERENCE_PARTS
        weights = [token_weights(spec.policy_gradient, rollout, part, spec.seed)]
        estimates = [self._gradients(pool, start, part, weights, spec) for start in range(0, _completions(spec), part)]
        reference = torch.cat(estimates)
        return ProbeMeasurement(
            weights_digest(self._policy.model.state_dict()),
            float(rollout.rewards.nanmean()),
            gram(reference),
            self._points(reference),
        )

    def _points(self, reference: Tensor) -> dict[ProbePoint, dict[str, InnerProducts]]:
        """Measure all points. A pool serves all points of its group size, and is dropped before the next is sampled."""
        found = {}
        for group_size in dict.fromkeys(point.group_size for point in self._design.points):
            points = [point for point in self._design.points if point.group_size == group_size]
            first = next(iter(self._design.points[points[0]].values()))
            prompts = self._design.file.completions // group_size
            pool = draw_pool(first, prompts, _ESTIMATES_STEP, self._problems, self._policy)
            for point in points:
                found[point] = self._point(pool, point, reference)
        # Back into the order of the design.
        return {point: found[point] for point in self._design.points}

    def _point(self, pool: Pool, point: ProbePoint, reference: Tensor) -> dict[str, InnerProducts]:
        """Measure every objective at one point."""
        specs = self._design.points[point]
        weights = [
            token_weights(spec.policy_gradient, pool.rewarded(spec, self._policy), point.batch_size, spec.seed)
            for spec in specs.values()
        ]
        estimates = self._design.estimates(point)
        tallies = [EstimateTally(estimates, reference) for _ in specs]
        first = next(iter(specs.values()))
        for estimate in range(estimates):
            found = self._gradients(pool, estimate * point.batch_size, point.batch_size, weights, first)
            for tally, gradient in zip(tallies, found, strict=True):
                tally.add(gradient)
        return {name: tally.inner_products() for name, tally in zip(specs, tallies, strict=True)}

    def _gradients(self, pool: Pool, start: int, count: int, weights: Sequence[TokenWeights], spec: RunSpec) -> Tensor:
        """Compute the gradients [O, D] of the estimate in `count` rows of the pool, from `start` on."""
        rows = torch.arange(start, start + count)
        found = gradients(self._policy.model, pool.batch.sequences, rows, weights, spec, self._policy.pad_token_id)
        self._done += count * len(weights)
        self._report(self._done, self._total, f"groups of {spec.rollout.samples_per_prompt}, batches of {count}")
        return found


def _completions(spec: RunSpec) -> int:
    return spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt


@dataclass(frozen=True)
class Pool:
    """N completions, those of a prompt next to each other, with their scores under the frozen policy."""

    batch: Batch
    engine: Engine
    step: int

    def rewarded(self, spec: RunSpec, language_model: LanguageModel) -> Batch:
        """Return all completions with their rewards under this spec's objective."""
        return Rollouts(spec, language_model, self.engine).reward(self.batch, self.step)


def draw_pool(spec: RunSpec, prompts: int, step: int, problems: Sequence[Problem], policy: LanguageModel) -> Pool:
    """Sample completions for prompts that are themselves sampled from the problems with replacement.

    Any two prompts are then independent, and batches are independent samples from one distribution. `step` keys the
    sampling: two pools of one step share the first samples of their first prompts.
    """
    engine = make_engine(spec.rollout, policy)
    keys = [random_key(spec.seed, "data", step, prompt) for prompt in range(prompts)]
    drawn = [problems[key % len(problems)] for key in keys]
    batch = Rollouts(spec, policy, engine).writer.draw(drawn, step, spec.rollout.max_completion_tokens)
    if not torch.isfinite(batch.sampler_logps).all():
        raise RefusedError("shelves.probe.log_probs_not_finite", source=spec.model.source)
    scores = Scores.empty(batch.sequences)
    SequenceScorer(policy.model, None, spec, policy.pad_token_id).fill(
        scores, batch.sequences, torch.arange(len(batch))
    )
    return Pool(replace(batch, scores=scores), engine, step)
