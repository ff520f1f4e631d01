"""Training on pairs: of the policy's own completions, or from a fixed set, for which nothing is generated.

`rollout.sampler` determines whether pairs of own completions are online, offline or iterative.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.config.rollout import DatasetPairs, PolicyPairs
from harness.config.run_spec import RunSpec
from harness.models.language_model import LanguageModel
from harness.random_keys import permutation, random_key
from harness.run.encoded_pairs import EncodedPairs
from harness.run.learning.base import nothing
from harness.run.learning.rollouts import RolloutLearner
from harness.training.batch import Batch
from harness.training.preference_update import PairBatch, PreferenceUpdate
from harness.training.reference import frozen_copy, require_copy
from harness.training.sequences import Sequences
from harness.training.states import CellProgress, TrainerState
from harness.training.update_report import Metrics, StepReport


class PolicyPairsLearner(RolloutLearner[PreferenceUpdate]):
    """Pairs up the completions of each prompt by their rewards, and trains on the pairs with a preference objective."""

    def _make_update(self) -> PreferenceUpdate:
        start = self._start
        return PreferenceUpdate(start.model, self._spec, start.pad_token_id, self._initial, self._reference())

    def _learn(self, batch: Batch, step: int) -> tuple[StepReport, Metrics, list[dict[str, object]]]:
        assert isinstance(self._spec.pairs, PolicyPairs)
        pairs, metrics = pair_up(batch, self._spec.pairs, self._spec.seed, step)
        update = self._update.run(PairBatch.of_rows(batch.sequences, batch.groups, pairs), step, drawn=batch.sequences)
        chosen, rejected = pairs.T.tolist()
        rows = range(len(batch))
        columns = [{"times_chosen": chosen.count(row), "times_rejected": rejected.count(row)} for row in rows]
        return update, metrics, columns

    def _needs_initial(self) -> bool:
        return super()._needs_initial() or self._spec.preference.reference == "initial"

    def _reference(self) -> PreTrainedModel | None:
        match self._spec.preference.reference:
            case "none":
                return None
            case "initial":
                return require_copy(self._initial)
            case "round_start":
                return require_copy(self._round and self._round.policy)


def pair_up(batch: Batch, pairs: PolicyPairs, seed: int, step: int) -> tuple[Tensor, Metrics]:
    """Pair up the completions of each prompt by their rewards, as `pairs.pairing` says. Rewards of NaN are left out.

    `best_worst` breaks ties by the order of sampling. `all` takes every two completions with unequal rewards. If this
    gives more than max_per_prompt pairs, a random subset is taken. It is keyed by seed, step and prompt, so that arms
    share it.

    Returns rows of pairs, [P, 2] int64 with the better completion first, and metrics. The metrics count:
    * the pairs;
    * the prompts without a pair, because their rewards were all equal or unknown;
    * the pairs left out because both completions have the same tokens, whose rewards can differ by noise;
    * the pairs left out beyond max_per_prompt.
    """
    found: list[tuple[int, int]] = []
    without = equal_sides = over_cap = 0
    rewards = batch.rewards.tolist()
    for group in torch.unique(batch.groups).tolist():
        # NaN is not equal to itself, so this comparison drops rows without a score.
        rows = [row for row in (batch.groups == group).nonzero()[:, 0].tolist() if rewards[row] == rewards[row]]
        unequal = [(a, b) for a, b in itertools.permutations(rows, 2) if rewards[a] > rewards[b]]
        if not unequal:
            without += 1
            continue
        if pairs.pairing == "best_worst":
            # Among completions with equal rewards, the first sampled one is taken for either side.
            best = max(rows, key=lambda row: (rewards[row], -row))
            worst = min(rows, key=lambda row: (rewards[row], row))
            unequal = [(best, worst)]
        distinct = [pair for pair in unequal if not _same_tokens(batch.sequences, *pair)]
        equal_sides += len(unequal) - len(distinct)
        if len(distinct) > pairs.max_per_prompt:
            over_cap += len(distinct) - pairs.max_per_prompt
            key = random_key(seed, "select", step=step, example=f"pairs/{group}")
            distinct = [distinct[index] for index in permutation(len(distinct), key)[: pairs.max_per_prompt]]
        found += distinct
    metrics: Metrics = {
        "pairs/count": len(found),
        "pairs/groups_without_pair": without,
        "pairs/equal_sides": equal_sides,
        "pairs/over_cap": over_cap,
    }
    return torch.tensor(found, dtype=torch.int64).view(-1, 2), metrics


def _same_tokens(sequences: Sequences, a: int, b: int) -> bool:
    length = int(sequences.lengths[a])
    return length == int(sequences.lengths[b]) and bool(
        (sequences.completions[a, :length] == sequences.completions[b, :length]).all()
    )


class DatasetPairsLearner:
    """Uses every pair once per epoch, in an order determined by the seed.

    The reference log-probs are stored with the pairs.
    """

    def __init__(self, spec: RunSpec, start: LanguageModel, encoded: EncodedPairs, pairs: DatasetPairs) -> None:
        self._spec, self._encoded, self._pairs = spec, encoded, pairs
        # The log-probs of the pairs are stored. KTO also needs the log-probs of completions after other prompts.
        needed = spec.train.reference_rows > 0 or spec.preference.link == "kto"
        initial = frozen_copy(start.model) if needed else None
        self._update = PreferenceUpdate(start.model, spec, start.pad_token_id, initial, reference=initial)

    def step(self, step: int, done_frac: float, before_update: Callable[[], object] = nothing) -> StepReport:
        chosen = self._encoded.of_step(step, self._pairs.pairs_per_step, self._spec.seed)
        batch = self._encoded.batch(chosen)
        # Nothing is sampled here, so the complete step is the update.
        before_update()
        update = self._update.run(batch, step)
        epochs = step * self._pairs.pairs_per_step / len(self._encoded)
        metrics = {"pairs/count": len(batch), "pairs/epochs": epochs, **update.metrics}
        return replace(update, metrics=metrics, reward=update.metrics["rewards/accuracy"])

    def trainer_state(self) -> TrainerState:
        state = self._update.state_dict()
        return {"optimizer": state["optimizer"], "budget": state["budget"]}

    def progress(self) -> CellProgress:
        return {}

    def restore(self, trainer_state: TrainerState, progress: CellProgress) -> None:
        self._update.load_state_dict(trainer_state)
