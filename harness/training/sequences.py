"""Prompts with their completions, and what models compute for them: hidden states, log-probs, entropies.

Shapes: N rows, P distinct prompts, W longest prompt, T longest completion, V vocabulary. Completions are padded on the
right. A model computes each prompt once if its architecture allows (`harness.training.prefix_attention`), and otherwise
passes over padded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from evals.tasks.environment import Interjection
from harness.config.run_spec import RunSpec
from harness.processes import Processes, RowShare
from harness.sampling.turns import Woven
from harness.training.optimizer import TokenBudget, grouped_micro_batches, micro_batches
from harness.training.prefix_attention import (
    PrefixLayout,
    attending_by,
    collect,
    prefix_hidden,
    shares_prompts,
    spread,
)
from harness.training.tensors import on_device, to_host
from harness.training.token_scores import LOGITS_CHUNK_TOKENS, output_head, token_scores

if TYPE_CHECKING:
    from harness.training.policy_update import CriticModel


class DistinctPrompts(NamedTuple):
    """The P prompts of a batch, without repetition."""

    tokens: Tensor
    """[P, W] int64, padded on the right with any token."""
    lengths: Tensor
    """[P] int64."""
    of_row: Tensor
    """[N] int64: the number of each row's prompt."""


class PassTokens(NamedTuple):
    """Counts of the tokens that a forward pass computes."""

    computed: int
    padding: int
    """How many of the computed ones are padding."""


@dataclass(frozen=True)
class Sequences:
    """N prompts with their completions."""

    prompts: Sequence[Sequence[int]]
    """N lists of token ids."""
    completions: Tensor
    """[N, T] int64, right-padded."""
    lengths: Tensor
    """[N] int64: tokens in each completion."""
    interjections: Sequence[Sequence[Interjection]] = ()
    """The environment's words within each of the N completions; empty if there are none at all. Models read them, and
    that is all. They are no part of completions, lengths and mask, so they are neither trained on nor counted.
    """

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        interjections: Sequence[Sequence[Interjection]] = (),
    ) -> Sequences:
        """Build sequences from lists of token ids, one completion per prompt."""
        padded = pad_sequence([torch.tensor(one, dtype=torch.int64) for one in completions], batch_first=True)
        return cls(prompts, padded, torch.tensor([len(one) for one in completions]), interjections)

    @classmethod
    def joined(cls, parts: Sequence[Sequences]) -> Sequences:
        """Join the rows of all parts, in order."""
        longest = max(one.completions.shape[1] for one in parts)
        # Padding is masked everywhere, so any token id serves.
        padded = [functional.pad(one.completions, (0, longest - one.completions.shape[1])) for one in parts]
        prompts = [prompt for one in parts for prompt in one.prompts]
        # Parts without interjections get empty ones if another part has some, so that rows stay aligned.
        interjections: list[Sequence[Interjection]] = []
        if any(one.interjections for one in parts):
            interjections = [said for one in parts for said in one.interjections or [()] * len(one.prompts)]
        return cls(prompts, torch.cat(padded), torch.cat([one.lengths for one in parts]), interjections)

    @property
    def mask(self) -> Tensor:
        """A bool [N, T] mask, true at completion tokens."""
        return torch.arange(self.completions.shape[1]) < self.lengths[:, None]

    @cached_property
    def woven(self) -> Woven:
        """The tokens that models read after the prompts: completions with the interjections in their places."""
        if not any(self.interjections):
            return Woven(self.completions, self.lengths, None)
        return Woven.of(self.completions, self.lengths, self.interjections)

    @cached_property
    def distinct_prompts(self) -> DistinctPrompts:
        numbers: dict[tuple[int, ...], int] = {}
        of_row = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in self.prompts]
        tokens = pad_sequence([torch.tensor(prompt, dtype=torch.int64) for prompt in numbers], batch_first=True)
        lengths = torch.tensor([len(prompt) for prompt in numbers])
        return DistinctPrompts(tokens, lengths, torch.tensor(of_row))

    @cached_property
    def distinct_rows(self) -> tuple[Tensor, list[int]]:
        """The first row of each distinct sequence (int64 indices), and for each of the N rows the first equal row."""
        first: dict[tuple[tuple[int, ...], tuple[int, ...], str], int] = {}
        said = self.interjections or [()] * len(self.prompts)
        rows = zip(self.prompts, self.completions.tolist(), self.lengths.tolist(), said, strict=True)
        same_as = [
            first.setdefault((tuple(prompt), tuple(completion[:length]), str(said)), row)
            for row, (prompt, completion, length, said) in enumerate(rows)
        ]
        return torch.tensor([*first.values()], dtype=torch.int64), same_as

    def rows(self, chosen: Tensor) -> Sequences:
        """Return the chosen rows (int64 indices), in that order."""
        prompts = [self.prompts[row] for row in chosen.tolist()]
        interjections = [self.interjections[row] for row in chosen.tolist()] if self.interjections else []
        return Sequences(prompts, self.completions[chosen], self.lengths[chosen], interjections)

    def micro_batches(self, rows: Tensor, budget_tokens: int, shared: bool = False) -> list[Tensor]:
        """Split rows (int64 indices) into micro-batches, which pass through a model at once, within a budget of tokens.

        shared: the model computes each prompt once and no padding (`grouped_micro_batches`). Otherwise rows of similar
        length are together, and padding counts (`micro_batches`).
        """
        if len(rows) == 0:
            return []
        lengths = self.woven.lengths.tolist()
        if not shared:
            return micro_batches(rows, list(map(len, self.prompts)), lengths, budget_tokens)
        prompts = self.distinct_prompts
        return grouped_micro_batches(rows, prompts.of_row.tolist(), prompts.lengths.tolist(), lengths, budget_tokens)

    def pass_tokens(self, rows: Tensor, shared: bool) -> PassTokens:
        """Count the tokens that one forward pass over the rows computes; shared as in `micro_batches`."""
        # The last token of a row predicts nothing and is not fed.
        fed = (self.woven.lengths[rows] - 1).clamp_min(0)
        prompts = self.distinct_prompts
        if shared:
            computed = int(prompts.lengths[torch.unique(prompts.of_row[rows])].sum() + fed.sum())
            return PassTokens(computed, 0)
        lengths = prompts.lengths[prompts.of_row[rows]]
        computed = len(rows) * int(lengths.max() + fed.max())
        return PassTokens(computed, computed - int((lengths + fed).sum()))


@dataclass(frozen=True)
class PaddedRows:
    """Rows as any decoder takes them: prompts padded on the left and completions on the right, all [n, W + T' - 1]."""

    width: int
    """W, the length of the longest prompt."""
    inputs: Tensor
    attention: Tensor
    positions: Tensor

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], completions: Tensor, mask: Tensor, pad_token_id: int) -> PaddedRows:
        width = max(map(len, prompts))
        # Prompts end at one column, so that all completions start at the next one.
        padded = torch.full((len(prompts), width), pad_token_id)
        prompt_mask = torch.zeros_like(padded, dtype=torch.bool)
        for index, prompt in enumerate(prompts):
            padded[index, width - len(prompt) :] = torch.tensor(prompt)
            prompt_mask[index, width - len(prompt) :] = True
        # The last completion token predicts nothing that is scored, so it is not fed.
        attention = torch.cat([prompt_mask, mask[:, :-1]], dim=1).long()
        inputs = torch.cat([padded, completions[:, :-1]], dim=1)
        return cls(width, inputs, attention, (attention.cumsum(1) - 1).clamp_min(0))


@dataclass(frozen=True)
class BatchPart:
    """n rows of a batch as passes over them need them: laid out on the host, then moved to a model's device in one go.

    T' is the longest completion among the rows, m the number of their tokens.
    """

    completions: Tensor
    """[n, T'] int64."""
    mask: Tensor
    """Bool [n, T'], true at completion tokens."""
    scored: Tensor
    """[m] int64: the indices of completion tokens among the n * T'."""
    places: Tensor | None
    """[n, T'] int64: the index of each of these tokens among those that are read; None if it is the token's own index.
    """
    rows: dict[str, Tensor]
    """Further tensors that were requested for these rows: [n, T'] or [n]."""
    layout: PrefixLayout | PaddedRows

    @classmethod
    def of(
        cls,
        models: Sequence[PreTrainedModel],
        sequences: Sequences,
        rows: Tensor,
        pad_token_id: int,
        **tensors: Tensor | None,
    ) -> BatchPart:
        """Lay out some rows (int64 indices) for passes of models that are on one device.

        tensors: [N, T] or [N], on the host. Raises ValueError for no rows, and for an empty prompt: nothing predicts
        its completion's first token.
        """
        prompts = [sequences.prompts[row] for row in rows.tolist()]
        if not prompts or not all(prompts):
            raise ValueError("no rows, or a row with an empty prompt: there is nothing to predict its completion from")
        lengths = sequences.lengths[rows]
        longest = int(lengths.max())
        completions = sequences.completions[rows, :longest]
        mask = torch.arange(longest) < lengths[:, None]
        woven = sequences.woven
        read_lengths = woven.lengths[rows]
        read = woven.tokens[rows, : int(read_lengths.max())]
        places = None if woven.places is None else woven.places[rows, :longest]
        # All models of a part share one layout, so a single one that needs padding decides.
        if all(shares_prompts(model.get_decoder()) for model in models):
            distinct = sequences.distinct_prompts
            used, prompt_of_row = torch.unique(distinct.of_row[rows], return_inverse=True)
            widths = distinct.lengths[used]
            # Only as wide as the longest prompt among these rows.
            tokens = distinct.tokens[used, : int(widths.max())]
            layout: PrefixLayout | PaddedRows = PrefixLayout.of(tokens, widths, prompt_of_row, read, read_lengths)
        else:
            attended = torch.arange(read.shape[1]) < read_lengths[:, None]
            layout = PaddedRows.of(prompts, read, attended, pad_token_id)
        chosen = {
            name: tensor[rows, :longest] if tensor.ndim == 2 else tensor[rows]
            for name, tensor in tensors.items()
            if tensor is not None
        }
        part = cls(completions, mask, mask.flatten().nonzero()[:, 0], places, chosen, layout)
        return on_device(part, models[0].device)

    def hidden(self, model: PreTrainedModel) -> Tensor:
        """Return the last hidden states [n, T', D] that the completion tokens are predicted from, with their gradient.

        In padding they are meaningless, but finite. The model is one of those that the part was made for.
        """
        return Processes.here().passing(model, lambda: self._hidden(model.get_decoder()))

    def _hidden(self, decoder: PreTrainedModel) -> Tensor:
        layout = self.layout
        if isinstance(layout, PrefixLayout):
            # An embedding, since its backward pass adds up in a fixed order, and a prompt's last token predicts for
            # several rows.
            predictors = layout.predictors if self.places is None else layout.predictors.gather(1, self.places)
            return functional.embedding(predictors, prefix_hidden(decoder, layout))
        with attending_by(decoder):
            hidden: Tensor = decoder(
                input_ids=layout.inputs,
                attention_mask=layout.attention,
                position_ids=layout.positions,
                use_cache=False,
            ).last_hidden_state
        # A prompt's last token, in column W - 1, predicts the first completion token.
        hidden = hidden[:, layout.width - 1 :]
        return hidden if self.places is None else hidden.take_along_dim(self.places[:, :, None], dim=1)

    def at_tokens(self, values: Tensor) -> Tensor:
        """Return the values [m, ...] at completion tokens, of [n, T', ...]."""
        return collect(values.flatten(0, 1), self.scored)

    def spread(self, values: Tensor) -> Tensor:
        """Return [n, T'] with values [m] at the completion tokens and 0 in padding."""
        return spread(values, self.scored, self.mask.numel()).view(self.mask.shape)


def score_completions(
    model: PreTrainedModel,
    sequences: Sequences,
    rows: Tensor,
    temperature: float,
    pad_token_id: int,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-prob of every completion token and the entropy of the distribution it was sampled from, in nats.

    Both are [len(rows), T'] float32 with T' the longest completion among the rows, at temperature-scaled logits; 0 in
    padding. The logits of no more than chunk_tokens positions are held at once. The entropy (full softmax) carries a
    gradient only with entropy_grad. Raises RefusedError for a model that computes its logits in an unknown way.
    """
    part = BatchPart.of([model], sequences, rows, pad_token_id)
    return score_hidden(model, part.hidden(model), part, temperature, chunk_tokens, entropy_grad)


def passes(
    budget: TokenBudget, model: PreTrainedModel, sequences: Sequences, rows: Tensor, work: Callable[[Tensor], None]
) -> RowShare:
    """Call work(some rows) until this process's share of the rows (int64 indices) has passed.

    Each call gets as many rows as the budget allows; callers disable gradients. Returns the rows of each process. If
    memory runs out, `work` is called for all rows again, so it must overwrite its results. Raises as `TokenBudget.run`.
    """
    shared = shares_prompts(model.get_decoder())
    share = RowShare.of(rows, sequences.lengths)

    def work_through(micros: list[Tensor]) -> None:
        for micro in micros:
            work(micro)

    budget.run(
        lambda tokens: share.micro_batches(lambda own: sequences.micro_batches(own, tokens, shared)), work_through
    )
    return share


def score_hidden(
    model: PreTrainedModel,
    hidden: Tensor,
    part: BatchPart,
    temperature: float,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies from the hidden states of a part: the second half of `score_completions`."""
    states, tokens = part.at_tokens(hidden), part.at_tokens(part.completions)
    logps, entropy = token_scores(states, output_head(model), tokens, temperature, chunk_tokens, entropy_grad)
    return part.spread(logps), part.spread(entropy)


def rows_to_measure(count: int, wanted: int) -> Tensor:
    """Return `wanted` of `count` rows, or all if there are fewer: ascending int64 indices, spread evenly."""
    wanted = min(count, wanted)
    return torch.arange(wanted) * count // max(1, wanted)


@dataclass(frozen=True)
class Scores:
    """[N, T] float32 on the CPU, 0 in padding and in rows that were not scored."""

    logps: Tensor
    entropy: Tensor
    values: Tensor

    @classmethod
    def empty(cls, sequences: Sequences) -> Scores:
        return cls(*(torch.zeros(sequences.completions.shape) for _ in range(3)))

    def put(self, found: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> None:
        """Write the results of passes: for some rows (int64 indices) log-probs, entropies and perhaps values.

        Each is [n, T'] on any device.
        """
        # One transfer for all results: each would make the host wait for the device.
        on_host = iter(to_host([tensor.detach() for _, tensors in found for tensor in tensors]))
        for rows, tensors in found:
            # Not strict: without a critic there are no values.
            for own, tensor in zip((self.logps, self.entropy, self.values), tensors, strict=False):
                own[rows, : tensor.shape[1]] = next(on_host)


@dataclass
class SequenceScorer:
    """Scores rows of a rollout batch with a policy and, if there is one, a critic."""

    policy: PreTrainedModel
    critic: CriticModel | None
    spec: RunSpec
    pad_token_id: int
    budget: TokenBudget = field(init=False)
    """The token budget of all passes of an update."""

    def __post_init__(self) -> None:
        self.budget = TokenBudget.of(self.spec)

    def part(self, sequences: Sequences, rows: Tensor, **tensors: Tensor | None) -> BatchPart:
        """Lay out some rows (int64 indices) for passes of policy and critic; as `BatchPart.of`."""
        models = [self.policy] if self.critic is None else self.critic.models(self.policy)
        return BatchPart.of(models, sequences, rows, self.pad_token_id, **tensors)

    def score(self, part: BatchPart, hidden: Tensor, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies [n, T'] from the policy's hidden states of a part; see `score_completions`."""
        spec = self.spec
        temperature, chunk_tokens = spec.rollout.temperature, spec.train.logits_chunk_tokens
        return score_hidden(self.policy, hidden, part, temperature, chunk_tokens, entropy_grad)

    @torch.no_grad()
    def fill(self, scores: Scores, sequences: Sequences, rows: Tensor) -> None:
        """Score the rows (int64 indices) and write the results into `scores`."""

        def score(micro: Tensor) -> None:
            part = self.part(sequences, micro)
            hidden = part.hidden(self.policy)
            found = [*self.score(part, hidden)]
            if self.critic is not None:
                found.append(self.critic.values(part, hidden))
            scores.put([(micro, found)])

        share = passes(self.budget, self.policy, sequences, rows, score)
        share.exchange_(scores.logps, scores.entropy, scores.values)

    @torch.no_grad()
    def logps_of(self, model: PreTrainedModel, sequences: Sequences) -> Tensor:
        """Return the log-probs [N, T] of all rows under another model."""
        logps = torch.zeros(sequences.completions.shape)
        spec = self.spec

        def score(micro: Tensor) -> None:
            scored, _ = score_completions(
                model, sequences, micro, spec.rollout.temperature, self.pad_token_id, spec.train.logits_chunk_tokens
            )
            logps[micro, : scored.shape[1]] = scored.cpu()

        passes(self.budget, model, sequences, torch.arange(len(logps)), score).exchange_(logps)
        return logps
