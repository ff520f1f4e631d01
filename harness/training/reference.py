"""Frozen models next to the trained policy: copies that it is kept close to or measured against, and its teacher."""

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
    """Return a copy that shares no weight with the policy and takes no gradient."""
    frozen: PreTrainedModel = copy.deepcopy(policy).requires_grad_(False)
    for weight in frozen.parameters():
        weight.grad = None
    return frozen


def require_copy(copy: PreTrainedModel | None) -> PreTrainedModel:
    """Return a frozen copy that the spec needs.

    Raises RuntimeError if none was made, rather than use another policy.
    """
    if copy is None:
        raise RuntimeError("no copy was made of the weights that are to be sampled from or compared with")
    return copy


class RenewedCopy:
    """A frozen copy of the policy, renewed at the first of every `every_steps` steps."""

    def __init__(self, model: PreTrainedModel, every_steps: int) -> None:
        """Copy a model that holds the starting weights."""
        self.policy = frozen_copy(model)
        self._trained = trained_weights(model).keys()
        self._every_steps = every_steps

    def begin(self, step: int, model: PreTrainedModel) -> None:
        """Renew the copy if one is due; called before each step (from 1) with the trained policy."""
        if (step - 1) % self._every_steps == 0:
            self.policy.load_state_dict(model.state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copy's weights without those that training leaves alone."""
        return {name: weight for name, weight in self.policy.state_dict().items() if name in self._trained}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        load_trained_weights(self.policy, state)


class KlReference:
    """The policy that the objective's KL refers to."""

    def __init__(self, kl: Kl, model: PreTrainedModel, initial: PreTrainedModel | None) -> None:
        """Choose the reference policy.

        model: holds the starting weights. initial: a frozen copy of them, if there is one already.
        """
        self.policy: PreTrainedModel | None = None
        """None if the KL needs no model of its own."""
        self._renewed: RenewedCopy | None = None
        # Relative to the start of the iteration, the reference log-probs are the batch's old log-probs.
        if kl.where == "none" or kl.reference == "iteration_start":
            return
        if kl.reference == "initial":
            self.policy = initial or frozen_copy(model)
        else:
            self._renewed = RenewedCopy(model, kl.refresh_every_steps)
            self.policy = self._renewed.policy

    def begin(self, step: int, model: PreTrainedModel) -> None:
        """Renew the reference if one is due; called before each step (from 1) with the trained policy."""
        if self._renewed is not None:
            self._renewed.begin(step, model)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the reference's weights, or nothing if it is the starting policy."""
        return {} if self._renewed is None else self._renewed.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if self._renewed is not None:
            self._renewed.load_state_dict(state)


@dataclass(frozen=True)
class Teacher:
    """A frozen model with the policy's vocabulary, from which the policy is distilled.

    No checkpoint holds its weights. It may read prompts of its own, so it passes over completions apart from the
    policy.
    """

    model: PreTrainedModel
    distill: DistillInReward | DistillInLoss
    pad_token_id: int
    chunk_tokens: int

    def divergence(
        self, sequences: Sequences, rows: Tensor, policy: PreTrainedModel, part: BatchPart, hidden: Tensor
    ) -> Tensor:
        """Return the divergence [n, T'] from the policy's next-token distributions, in nats, with its gradient.

        The gradient goes to the policy alone; padding has 0. sequences: completions after the teacher's prompts. rows
        (int64 indices): those of the part, whose hidden states [n, T', D] are the policy's. Raises TypeError unless the
        divergence is a term of the loss.
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
    """What a reference model assigns to some of N completions."""

    mask: Tensor
    """Bool [N, T]: the tokens of these completions."""
    reference_logps: Tensor
    """[tokens] in the mask's order, on the CPU."""
    kl: Tensor
    """[tokens] exact KL(policy || reference) in nats."""


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
    """Return KL(model || reference) between the distributions that each completion token is sampled from, in nats.

    The result is [len(rows), T'] float32 over the whole vocabulary, at temperature-scaled logits; 0 in padding; no
    gradient.
    """
    part = BatchPart.of([model, reference], sequences, rows, pad_token_id)
    states, reference_states = (part.at_tokens(part.hidden(one)) for one in (model, reference))
    kl = token_kl(states, output_head(model), reference_states, output_head(reference), temperature, chunk_tokens)
    return part.spread(kl)


@torch.no_grad()
def measure(scorer: SequenceScorer, reference: PreTrainedModel, sequences: Sequences, rows: Tensor) -> Measured:
    """Return the reference's log-probs of the rows' tokens, and the exact KL(policy || reference) at these tokens."""
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

    # Each process fills in its share of the rows; the exchange completes both tensors in all of them.
    passes(scorer.budget, scorer.policy, sequences, rows, score).exchange_(logps, kl)
    return Measured(mask, logps[mask], kl[mask])


def measure_start(scorer: SequenceScorer, initial: PreTrainedModel | None, sequences: Sequences) -> Measured | None:
    """Measure how far the policy is from the starting one, on train.reference_rows of a batch's completions.

    Returns None without a starting policy or without rows.
    """
    rows = rows_to_measure(len(sequences.lengths), scorer.spec.train.reference_rows)
    return None if initial is None or len(rows) == 0 else measure(scorer, initial, sequences, rows)


def start_metrics(policy_logps: Tensor, measured: Measured | None) -> dict[str, float | None]:
    """Return kl/*_start: the exact KL from the batch's policy to the starting one, and its estimates from the tokens.

    They are means over the measured tokens, in nats. kl/sequence_start is the exact KL summed over a completion's
    tokens, a mean over the measured completions. If the policy sampled the completions, kl/sequence_start estimates the
    KL of whole completions and the others that of a token. For given completions they hold for the contexts there. All
    are None if there was no row to measure. policy_logps [N, T].

    With r = start / policy: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r. Source: Schulman 2020, "Approximating
    KL divergence".
    """
    if measured is None:
        return dict.fromkeys(f"kl/{name}_start" for name in ("exact", "sequence", "k1", "k2", "k3"))
    log_ratio = measured.reference_logps - policy_logps[measured.mask]
    return {
        "kl/exact_start": float(measured.kl.mean()),
        "kl/sequence_start": float(measured.kl.sum() / measured.mask.any(1).sum()),
        "kl/k1_start": float(-log_ratio.mean()),
        "kl/k2_start": float(0.5 * (log_ratio**2).mean()),
        # expm1 keeps k3 accurate for small log-ratios; the clamp keeps it finite for large ones.
        "kl/k3_start": float((torch.expm1(log_ratio.clamp(max=LOG_RATIO_LIMIT)) - log_ratio).mean()),
    }
