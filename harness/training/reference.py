"""Frozen models next to the trained policy: reference copies for the KL and for measurements, and the teacher."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms.distillation import DistillInLoss, DistillInReward
from algorithms.kl import Kl
from algorithms.rules import LOG_RATIO_LIMIT
from harness.training.checkpoint import load_trained_weights, trained_weights
from harness.training.sequences import BatchPart, Sequences, SequenceScorer, passes, rows_to_measure, score_completions
from harness.training.token_scores import LOGITS_CHUNK_TOKENS, output_head, token_divergence, token_kl


def frozen_copy(policy: PreTrainedModel) -> PreTrainedModel:
    """Return a frozen copy of the policy that shares no weights with it."""
    frozen: PreTrainedModel = copy.deepcopy(policy).requires_grad_(False)
    for weight in frozen.parameters():
        weight.grad = None
    return frozen


def require_copy(copy: PreTrainedModel | None) -> PreTrainedModel:
    """Return the copy. Raises RuntimeError if it is None, although the spec needs it."""
    if copy is None:
        raise RuntimeError("no copy was made of the weights that are to be sampled from or compared with")
    return copy


class RenewedCopy:
    """A frozen copy of the policy that is renewed every `every_steps` steps."""

    def __init__(self, model: PreTrainedModel, every_steps: int) -> None:
        """Copy a model that has the starting weights."""
        self.policy = frozen_copy(model)
        self._trained = trained_weights(model).keys()
        self._every_steps = every_steps

    def begin(self, step: int, model: PreTrainedModel) -> None:
        """Renew the copy if it is due. Call this before each step (from 1) with the trained policy."""
        if (step - 1) % self._every_steps == 0:
            self.policy.load_state_dict(model.state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copy's weights, without weights that training does not change."""
        return {name: weight for name, weight in self.policy.state_dict().items() if name in self._trained}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        load_trained_weights(self.policy, state)


def kl_reference(
    kl: Kl, model: PreTrainedModel, initial: PreTrainedModel | None
) -> PreTrainedModel | RenewedCopy | None:
    """Return the reference policy of the objective's KL, or None if the KL needs no separate model.

    model: must have the starting weights.
    initial: a frozen copy of the starting weights, if there already is one.
    """
    # If the reference is the start of the iteration, its log-probs are the batch's old log-probs.
    if kl.where == "none" or kl.reference == "iteration_start":
        return None
    if kl.reference == "initial":
        return initial or frozen_copy(model)
    return RenewedCopy(model, kl.refresh_every_steps)


@dataclass(frozen=True)
class Teacher:
    """The frozen model that the policy is distilled from. It has the policy's vocabulary.

    Its weights are in no checkpoint. It may read other prompts than the policy, so its passes are separate.
    """

    model: PreTrainedModel
    distill: DistillInReward | DistillInLoss
    pad_token_id: int
    chunk_tokens: int

    def divergence(
        self, sequences: Sequences, rows: Tensor, policy: PreTrainedModel, part: BatchPart, hidden: Tensor
    ) -> Tensor:
        """Return the divergence [n, T'] between teacher and policy at each completion token, in nats, 0 in padding.

        Only the policy gets a gradient.

        sequences: the completions after the teacher's prompts.
        rows: the part's rows in `sequences` (int64 indices).
        hidden [n, T', D]: the policy's hidden states for the part.
        Raises TypeError unless distill.where=loss.
        """
        if not isinstance(self.distill, DistillInLoss):
            raise TypeError(f"distill.where={self.distill.where} has no divergence")
        with torch.no_grad():
            own = BatchPart.of([self.model], sequences, rows, self.pad_token_id)
            states = own.at_tokens(own.hidden(self.model))
        head, own_head = output_head(policy), output_head(self.model)
        found = token_divergence(part.at_tokens(hidden), head, states, own_head, self.distill, self.chunk_tokens)
        return part.spread(found)


class Measured(NamedTuple):
    """A reference model's log-probs, and the KL to it, for some of N completions."""

    mask: Tensor
    """Bool [N, T]: true at the tokens of the measured completions."""
    reference_logps: Tensor
    """[tokens] the reference's log-probs in the mask's order, on the CPU."""
    kl: Tensor
    """[tokens] exact KL(policy || reference) in nats, in the mask's order."""


@torch.no_grad()
def exact_kl(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    sequences: Sequences,
    rows: Tensor,
    temperature: float,
    pad_token_id: int,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
) -> Tensor:
    """Return the exact KL(model || reference) of the next-token distributions at each completion token, in nats.

    The result [len(rows), T'] is float32, over the complete vocabulary at logits / temperature, 0 in padding, without
    gradient.
    """
    part = BatchPart.of([model, reference], sequences, rows, pad_token_id)
    states, reference_states = (part.at_tokens(part.hidden(one)) for one in (model, reference))
    kl = token_kl(states, output_head(model), reference_states, output_head(reference), temperature, chunk_tokens)
    return part.spread(kl)


@torch.no_grad()
def measure(scorer: SequenceScorer, reference: PreTrainedModel, sequences: Sequences, rows: Tensor) -> Measured:
    """Compute the reference's log-probs, and the exact KL(policy || reference), at the tokens of some rows."""
    spec = scorer.spec
    temperature, chunk_tokens = spec.rollout.temperature, spec.train.logits_chunk_tokens
    chosen = torch.zeros(len(sequences.lengths), dtype=torch.bool)
    chosen[rows] = True
    mask = sequences.mask & chosen[:, None]
    logps, kl = torch.zeros(mask.shape), torch.zeros(mask.shape)

    def score(micro: Tensor) -> None:
        asked = (sequences, micro, temperature, scorer.pad_token_id, chunk_tokens)
        scored, _ = score_completions(reference, *asked)
        logps[micro, : scored.shape[1]] = scored.cpu()
        exact = exact_kl(scorer.policy, reference, *asked)
        kl[micro, : exact.shape[1]] = exact.cpu()

    # Each process fills in its share of the rows. The exchange completes both tensors in all processes.
    passes(scorer.budget, scorer.policy, sequences, rows, score).exchange_(logps, kl)
    return Measured(mask, logps[mask], kl[mask])


def measure_start(scorer: SequenceScorer, initial: PreTrainedModel | None, sequences: Sequences) -> Measured | None:
    """Measure how far the policy is from the starting policy, on train.reference_rows of a batch's completions.

    Returns None if there is no starting policy or no row to measure.
    """
    rows = rows_to_measure(len(sequences.lengths), scorer.spec.train.reference_rows)
    return None if initial is None or len(rows) == 0 else measure(scorer, initial, sequences, rows)


def start_metrics(policy_logps: Tensor, measured: Measured | None) -> dict[str, float | None]:
    """Return the metrics kl/*_start: the KL(policy || starting policy), exact and estimated, in nats.

    * kl/exact_start: mean exact KL per measured token.
    * kl/sequence_start: mean over the measured completions of the exact KL summed over their tokens.
    * kl/{k1,k2,k3}_start: means over the measured tokens of -log r, (log r)^2 / 2 and r - 1 - log r, with r = start /
      policy (Schulman 2020, "Approximating KL divergence").

    If the policy sampled the completions, kl/sequence_start estimates the KL of complete completions, and the others
    estimate the KL per token. For given completions, they only describe the contexts in these completions. All are None
    if there was no row to measure. policy_logps [N, T].
    """
    if measured is None:
        return dict.fromkeys(f"kl/{name}_start" for name in ("exact", "sequence", "k1", "k2", "k3"))
    log_ratio = measured.reference_logps - policy_logps[measured.mask]
    return {
        "kl/exact_start": float(measured.kl.mean()),
        "kl/sequence_start": float(measured.kl.sum() / measured.mask.any(1).sum()),
        "kl/k1_start": float(-log_ratio.mean()),
        "kl/k2_start": float(0.5 * (log_ratio**2).mean()),
        # expm1 makes k3 accurate for small log-ratios, and the clamp keeps it finite for large ones.
        "kl/k3_start": float((torch.expm1(log_ratio.clamp(max=LOG_RATIO_LIMIT)) - log_ratio).mean()),
    }
