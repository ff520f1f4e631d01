"""Learning from completions that are drawn and rewarded in each step: what all such learners share, and the
policy-gradient objectives, which learn from every completion by its advantage."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from transformers import PreTrainedModel

from harness.config.run_spec import RunSpec
from harness.engines.base import Engine, GenerationCost
from harness.engines.choice import make_engine
from harness.models.language_model import LanguageModel, TokenCharacters
from harness.run.learning.base import Examples, Row, StepOutcome
from harness.run.prompts import CompletionLimit, prompt_order
from harness.run.rollout import Rollouts, rollout_metrics, rollout_rows
from harness.training.batch import Batch, filter_rows
from harness.training.policy_update import PolicyUpdate
from harness.training.preference_update import PreferenceUpdate
from harness.training.reference import RenewedCopy, frozen_copy
from harness.training.update_report import UpdateReport


def require_copy(copy: PreTrainedModel | None) -> PreTrainedModel:
    """A frozen copy that the spec needs. Raises RuntimeError if none was made, rather than let another policy do."""
    if copy is None:
        raise RuntimeError("no copy was made of the weights that are to be sampled from or compared with")
    return copy


class RolloutLearner(ABC):
    """Draws prompts and completions and rewards them; what is learned from them is the subclass's.

    The language model must hold the starting weights.
    """

    _update: PolicyUpdate | PreferenceUpdate
    """The subclass makes it."""

    def __init__(self, spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine) -> None:
        """engine: draws from the policy as it is. If another policy is sampled from, an engine is made for it."""
        self._spec, self._start = spec, start
        self._initial = frozen_copy(start.model) if self._needs_initial() else None
        self._round = RenewedCopy(start.model, spec.rollout.round_steps) if spec.rollout.sampler == "round" else None
        sampler = self._sampling_model()
        if sampler is not start.model:
            engine = make_engine(spec.rollout, start, sampler)
        self._rollouts = Rollouts(spec, start, engine, examples.reward_model)
        self._order = prompt_order(spec.task, examples.problems, spec.seed)
        self._limit = CompletionLimit(spec.rollout)

    @abstractmethod
    def _learn(self, batch: Batch, step: int) -> tuple[UpdateReport, Row, list[Row]]:
        """Train on a step's rewarded completions; returns the report, metrics of what was chosen to be learned from,
        and for each completion more columns of rollouts/*.parquet."""

    def step(self, step: int, done_frac: float) -> StepOutcome:
        if self._round is not None:
            self._round.begin(step, self._start.model)
        batch = self._rollouts.gather(step, done_frac, self._order, self._limit.tokens)
        update, chosen, columns = self._learn(batch, step)
        measured = rollout_metrics(batch)
        reward = measured["reward/mean"]
        self._observe(batch, step, reward)
        return StepOutcome(
            metrics={
                **measured,
                "len/limit": batch.max_completion_tokens,
                **chosen,
                **update.metrics,
            },
            generated_tokens=batch.generated_tokens,
            reward=reward,
            timing={
                "rollout_s": batch.rollout_s,
                **_generation(batch.cost),
                "reward_s": batch.reward_s,
                **update.timing,
            },
            notes=update.notes,
            rollouts=[row | more for row, more in zip(rollout_rows(batch, step), columns, strict=True)],
        )

    def trainer_state(self) -> dict[str, Any]:
        round_start = {} if self._round is None else self._round.state_dict()
        return {"update": self._update.state_dict(), "round": round_start}

    def progress(self) -> dict[str, Any]:
        return {"order": self._order.state_dict(), "limit": self._limit.state_dict()}

    def restore(self, trainer_state: dict[str, Any], progress: dict[str, Any]) -> None:
        self._update.load_state_dict(trainer_state["update"])
        if self._round is not None:
            self._round.load_state_dict(trainer_state["round"])
        self._order.load_state_dict(progress["order"])
        self._limit.load_state_dict(progress["limit"])

    def _needs_initial(self) -> bool:
        """Whether a frozen copy of the starting weights is needed."""
        return self._spec.train.reference_rows > 0 or self._spec.rollout.sampler == "initial"

    def _sampling_model(self) -> PreTrainedModel:
        match self._spec.rollout.sampler:
            case "policy":
                return self._start.model
            case "initial":
                return require_copy(self._initial)
            case "round":
                return require_copy(self._round and self._round.policy)

    def _observe(self, batch: Batch, step: int, reward: float | None) -> None:
        """What later prompts and limits depend on."""
        right = batch.correct.view(-1, self._spec.rollout.samples_per_prompt)
        ids = [group[0].id for group in batch.by_group(batch.problems)]
        self._order.observe(ids, right.float().mean(1).tolist())
        self._limit.observe(step, math.nan if reward is None else reward)


def _generation(cost: GenerationCost) -> Row:
    """The parts of rollout_s, and the share of the decoding batch that was in use."""
    return {
        "sync_s": cost.sync_s,
        "prefill_s": cost.prefill_s,
        "decode_s": cost.decode_s,
        "occupancy_frac": cost.occupied / cost.slots if cost.slots else None,
    }


class PolicyGradientLearner(RolloutLearner):
    """Every completion that the knobs `overlong` and `zero_std` leave is learned from, by its advantage."""

    def __init__(self, spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine) -> None:
        super().__init__(spec, start, examples, engine)
        self._objective = spec.policy_gradient
        self._update: PolicyUpdate = PolicyUpdate(start.model, spec, start.pad_token_id, self._initial)
        self._characters = TokenCharacters(start.decode)

    def _learn(self, batch: Batch, step: int) -> tuple[UpdateReport, Row, list[Row]]:
        kept = filter_rows(self._objective, batch)
        chosen = {
            "rows_dropped": len(batch) - len(kept),
            "groups_dropped": len(torch.unique(batch.groups)) - len(torch.unique(kept.groups)),
            "refill_rounds": batch.refill_rounds,
        }
        update = self._update.run(kept, step)
        columns: list[Row] = [{} for _ in range(len(batch))]
        if update.tokens is not None:
            drawn = zip(kept.sequences.completions.tolist(), kept.attempts, strict=True)
            for place, seen, (tokens, attempt) in zip(kept.places.tolist(), update.tokens, drawn, strict=True):
                chars = self._characters.of(tokens[: attempt.n_tokens], attempt.text)
                columns[place] = {"token/chars": chars, **seen}
        return update, chosen, columns
