"""Prompts with their completions, and their hidden states, log-probs and entropies under models.

A model computes each prompt only once if its architecture allows it (`harness.training.prefix_attention`). Otherwise it
computes padded rows. Completions are padded on the right.

Shapes: N rows, P distinct prompts, W tokens of the longest prompt, T tokens of the longest completion, V vocabulary.
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
    """The P distinct prompts of a batch."""

    tokens: Tensor
    """[P, W] int64, padded on the right with any token."""
    lengths: Tensor
    """[P] int64 number of tokens."""
    of_row: Tensor
    """[N] int64: the index of each row's prompt."""


class PassTokens(NamedTuple):
    """The number of tokens that a forward pass computes."""

    computed: int
    padding: int
    """How many of the computed tokens are padding."""


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
    """The environment's answers within each of the N completions; empty if no completion has any. Models read them, but
    they are not part of completions, lengths and mask. So they are neither trained on nor counted.
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
        # Padding is masked everywhere, so any token id will do.
        padded = [functional.pad(one.completions, (0, longest - one.completions.shape[1])) for one in parts]
        prompts = [prompt for one in parts for prompt in one.prompts]
        # If one part has interjections, parts without them get empty ones, so that rows stay aligned.
        interjections: list[Sequence[Interjection]] = []
        if any(one.interjections for one in parts):
            interjections = [said for one in parts for said in one.interjections or [()] * len(one.prompts)]
        return cls(prompts, torch.cat(padded), torch.cat([one.lengths for one in parts]), interjections)

    @property
    def mask(self) -> Tensor:
        """A bool mask [N, T], true at completion tokens."""
        return torch.arange(self.completions.shape[1]) < self.lengths[:, None]

    @cached_property
    def woven(self) -> Woven:
        """The tokens that models read after the prompts: completions with the interjections inserted."""
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
        """(int64 indices of the first row of each distinct sequence, for each of the N rows its first equal row)."""
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
        """Split rows (int64 indices) into micro-batches within a token budget, each for one pass of a model.

        shared: whether the model computes each prompt once and no padding (`grouped_micro_batches`). If False, rows of
        similar length are grouped, and padding counts (`micro_batches`).
        """
        if len(rows) == 0:
            return []
        lengths = self.woven.lengths.tolist()
        if not shared:
            return micro_batches(rows, list(map(len, self.prompts)), lengths, budget_tokens)
        prompts = self.distinct_prompts
        return grouped_micro_batches(rows, prompts.of_row.tolist(), prompts.lengths.tolist(), lengths, budget_tokens)

    def pass_tokens(self, rows: Tensor, shared: bool) -> PassTokens:
        """Count the tokens that one forward pass over the rows computes. shared: see `micro_batches`."""
        # The last token of a row predicts nothing, so it is not fed to the model.
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
    """Rows for any decoder, all [n, W + T' - 1]: left-padded prompts, then right-padded completions."""

    width: int
    """W, the number of tokens of the longest prompt."""
    inputs: Tensor
    attention: Tensor
    positions: Tensor

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], completions: Tensor, mask: Tensor, pad_token_id: int) -> PaddedRows:
        width = max(map(len, prompts))
        # All prompts end in the same column, so that all completions start in the next.
        padded = torch.full((len(prompts), width), pad_token_id)
        prompt_mask = torch.zeros_like(padded, dtype=torch.bool)
        for index, prompt in enumerate(prompts):
            padded[index, width - len(prompt) :] = torch.tensor(prompt)
            prompt_mask[index, width - len(prompt) :] = True
        # The last completion token predicts nothing that is scored, so it is not fed to the model.
        attention = torch.cat([prompt_mask, mask[:, :-1]], dim=1).long()
        inputs = torch.cat([padded, completions[:, :-1]], dim=1)
        return cls(width, inputs, attention, (attention.cumsum(1) - 1).clamp_min(0))


@dataclass(frozen=True)
class BatchPart:
    """n rows of a batch in the form that model passes need, laid out on the host and moved to the device in one copy.

    T' is the number of tokens of the longest completion among the rows, m the number of completion tokens.
    """

    completions: Tensor
    """[n, T'] int64."""
    mask: Tensor
    """Bool [n, T'], true at completion tokens."""
    scored: Tensor
    """[m] int64: the indices of completion tokens among the n * T' positions."""
    places: Tensor | None
    """[n, T'] int64: the position of each completion token among the tokens that the model reads after the prompt. None
    if there are no interjections, so that positions are equal.
    """
    rows: dict[str, Tensor]
    """The `tensors` passed to `of`, for these rows: [n, T'] or [n]."""
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
        """Lay out some rows (int64 indices) for passes of models that are on the same device.

        tensors: further tensors [N, T] or [N] on the host, of which the part gets these rows. None is left out.
        Raises ValueError if there are no rows, or if a prompt is empty, because nothing would predict its completion's
        first token.
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
        # All models of a part share a layout, so it is padded if one of them needs padding.
        if all(shares_prompts(model.get_decoder()) for model in models):
            distinct = sequences.distinct_prompts
            used, prompt_of_row = torch.unique(distinct.of_row[rows], return_inverse=True)
            widths = distinct.lengths[used]
            # Cut to the longest prompt among these rows.
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
        """Return the last hidden states [n, T', D] that predict the completion tokens, with gradient.

        In padding they are finite but meaningless. The model must be one of those that the part was made for.
        """
        return Processes.here().passing(model, lambda: self._hidden(model.get_decoder()))

    def _hidden(self, decoder: PreTrainedModel) -> Tensor:
        layout = self.layout
        if isinstance(layout, PrefixLayout):
            # Gathered by `embedding`, because a prompt's last token predicts for several rows, and the backward pass of
            # `embedding` sums in a fixed order.
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
        """Return the values [m, ...] at the completion tokens, from values [n, T', ...]."""
        return collect(values.flatten(0, 1), self.scored)

    def spread(self, values: Tensor) -> Tensor:
        """Return [n, T'] with the values [m] at the completion tokens, and 0 in padding."""
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
    """Return the log-prob of every completion token and the entropy of its next-token distribution, in nats.

    Both are float32 [len(rows), T'], at logits / temperature, 0 in padding. T' is the number of tokens of the longest
    completion among the rows. The entropy is over the complete vocabulary.

    chunk_tokens: maximum number of positions whose logits are in memory at once.
    entropy_grad: whether the entropy has a gradient.
    Raises RefusedError if the model computes its logits in an unknown way.
    """
    part = BatchPart.of([model], sequences, rows, pad_token_id)
    return score_hidden(model, part.hidden(model), part, temperature, chunk_tokens, entropy_grad)


def passes(
    budget: TokenBudget, model: PreTrainedModel, sequences: Sequences, rows: Tensor, work: Callable[[Tensor], None]
) -> RowShare:
    """Call `work` on micro-batches of this process's share of the rows (int64 indices), and return the share.

    The caller must disable gradients. If memory runs out, `work` is called again for all rows, so it must overwrite its
    results. Raises the errors of `TokenBudget.run`.
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
    """Return log-probs and entropies from a part's hidden states. This is the second half of `score_completions`."""
    states, tokens = part.at_tokens(hidden), part.at_tokens(part.completions)
    logps, entropy = token_scores(states, output_head(model), tokens, temperature, chunk_tokens, entropy_grad)
    return part.spread(logps), part.spread(entropy)


def rows_to_measure(count: int, wanted: int) -> Tensor:
    """Return evenly spaced, ascending int64 indices of `wanted` of `count` rows, or of all rows if there are fewer."""
    wanted = min(count, wanted)
    return torch.arange(wanted) * count // max(1, wanted)


@dataclass(frozen=True)
class Scores:
    """Scores of completion tokens, each [N, T] float32 on the CPU, 0 in padding and in rows that were not scored."""

    logps: Tensor
    entropy: Tensor
    values: Tensor

    @classmethod
    def empty(cls, sequences: Sequences) -> Scores:
        return cls(*(torch.zeros(sequences.completions.shape) for _ in range(3)))

    def put(self, found: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> None:
        """Write the results of passes.

        found: per pass, the rows (int64 indices) and their log-probs, entropies and, with a critic, values, each
        [n, T'] on any device.
        """
        # All results are transferred at once, because each transfer makes the host wait for the device.
        on_host = iter(to_host([tensor.detach() for _, tensors in found for tensor in tensors]))
        for rows, tensors in found:
            # Not strict, because there are no values without a critic.
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
        """Lay out some rows (int64 indices) for passes of policy and critic; see `BatchPart.of`."""
        models = [self.policy] if self.critic is None else self.critic.models(self.policy)
        return BatchPart.of(models, sequences, rows, self.pad_token_id, **tensors)

    def score(self, part: BatchPart, hidden: Tensor, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies [n, T'] from the policy's hidden states for a part. See `score_hidden`."""
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
