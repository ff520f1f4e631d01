"""Prompts with their completions, and what models say about them: hidden states, log-probs, entropies.

Shapes: N rows, P distinct prompts, W longest prompt, T longest completion, V vocabulary. Completions are padded on the
right. A model passes over them with each prompt computed once where its architecture allows
(`harness.training.prefix_attention`), and over padded rows otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from harness.config.run_spec import RunSpec
from harness.training.optimizer import TokenBudget
from harness.training.prefix_attention import PrefixLayout, attending_by, prefix_hidden, shares_prompts
from harness.training.token_scores import LOGITS_CHUNK_TOKENS, output_head, token_kl, token_scores

if TYPE_CHECKING:
    from harness.training.critic import Critic


class DistinctPrompts(NamedTuple):
    """The P prompts of a batch, without repetition."""

    tokens: Tensor
    """[P, W] int64, padded on the right with any token."""
    lengths: Tensor
    """[P] int64."""
    of_row: Tensor
    """[N] int64: each row's prompt."""


class PassTokens(NamedTuple):
    """Tokens that a forward pass computes."""

    computed: int
    padding: int
    """How many of the computed ones are padding."""


@dataclass(frozen=True)
class Sequences:
    """N prompts with their completions.

    prompts: N lists of token ids; completions [N, T] int64, right-padded; lengths [N] int64, tokens in each completion.
    """

    prompts: Sequence[Sequence[int]]
    completions: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """Bool [N, T], true at completion tokens."""
        return torch.arange(self.completions.shape[1]) < self.lengths[:, None]

    @cached_property
    def distinct_prompts(self) -> DistinctPrompts:
        numbers: dict[tuple[int, ...], int] = {}
        of_row = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in self.prompts]
        tokens = pad_sequence([torch.tensor(prompt, dtype=torch.int64) for prompt in numbers], batch_first=True)
        lengths = torch.tensor([len(prompt) for prompt in numbers])
        return DistinctPrompts(tokens, lengths, torch.tensor(of_row))

    def rows(self, chosen: Tensor) -> Sequences:
        """The chosen rows (int64 indices), in that order."""
        return Sequences([self.prompts[row] for row in chosen.tolist()], self.completions[chosen], self.lengths[chosen])

    def micro_batches(self, rows: Tensor, budget_tokens: int, shared: bool = False) -> list[Tensor]:
        """Split rows (int64 indices) into micro-batches, which pass through a model at once, within a budget of tokens.

        shared: the model computes each prompt once and no padding (`grouped_micro_batches`). Otherwise rows of similar
        length are together, and padding counts (`micro_batches`).
        """
        if len(rows) == 0:
            return []
        lengths = self.lengths.tolist()
        if not shared:
            return micro_batches(rows, list(map(len, self.prompts)), lengths, budget_tokens)
        prompts = self.distinct_prompts
        return grouped_micro_batches(rows, prompts.of_row.tolist(), prompts.lengths.tolist(), lengths, budget_tokens)

    def pass_tokens(self, rows: Tensor, shared: bool) -> PassTokens:
        """What one forward pass over the rows computes; shared as in `micro_batches`."""
        fed = (self.lengths[rows] - 1).clamp_min(0)
        prompts = self.distinct_prompts
        if shared:
            computed = int(prompts.lengths[torch.unique(prompts.of_row[rows])].sum() + fed.sum())
            return PassTokens(computed, 0)
        lengths = prompts.lengths[prompts.of_row[rows]]
        computed = len(rows) * int(lengths.max() + fed.max())
        return PassTokens(computed, computed - int((lengths + fed).sum()))


def micro_batches(
    rows: Tensor, prompt_tokens: Sequence[int], completion_tokens: Sequence[int], budget_tokens: int
) -> list[Tensor]:
    """Split rows (int64 indices) so that no padded batch exceeds the budget, unless a single row does.

    prompt_tokens, completion_tokens: counts of all N rows. A batch is as wide as its longest prompt and its longest
    completion together. Rows are sorted by length first, since padding is wasted work.
    """
    batches: list[list[int]] = []
    width = 0
    for row in sorted(rows.tolist(), key=lambda row: (completion_tokens[row], prompt_tokens[row])):
        widest = max(width, prompt_tokens[row])
        if batches and (len(batches[-1]) + 1) * (widest + completion_tokens[row]) <= budget_tokens:
            batches[-1].append(row)
            width = widest
        else:
            batches.append([row])
            width = prompt_tokens[row]
    return [torch.tensor(batch) for batch in batches]


def grouped_micro_batches(
    rows: Tensor,
    group_of_row: Sequence[int],
    prompt_tokens: Sequence[int],
    completion_tokens: Sequence[int],
    budget_tokens: int,
) -> list[Tensor]:
    """Split rows (int64 indices) so that rows of one prompt stay together: the prompt is then computed once.

    group_of_row [N]: the number of each row's prompt; prompt_tokens [P]; completion_tokens [N]. The distinct prompts
    and the completions of a batch are within the budget, unless a single row exceeds it. Batches are of about equal
    size. Only a group that alone exceeds the budget is split.
    """
    groups: dict[int, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(group_of_row[row], []).append(row)
    sizes = {
        group: prompt_tokens[group] + sum(completion_tokens[row] for row in members)
        for group, members in groups.items()
    }
    total = sum(sizes.values())
    wanted = total / max(1, math.ceil(total / budget_tokens))
    batches: list[list[int]] = []
    held = math.inf
    for group, members in groups.items():
        # A group joins a batch if more than half of it still fits the wanted size.
        if held + sizes[group] <= budget_tokens and held + sizes[group] / 2 <= wanted:
            batches[-1] += members
            held += sizes[group]
            continue
        held = math.inf
        for row in members:
            if held + completion_tokens[row] > budget_tokens:
                batches.append([])
                held = prompt_tokens[group]
            batches[-1].append(row)
            held += completion_tokens[row]
    return [torch.tensor(batch) for batch in batches]


@dataclass(frozen=True)
class Part:
    """Takes the rows of a micro-batch out of tensors [N, T] and brings them to the model's device."""

    rows: Tensor
    longest: int
    device: torch.device

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self.rows, : self.longest].to(self.device)

    def if_any(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.of(tensor)


def score_completions(
    model: PreTrainedModel,
    sequences: Sequences,
    rows: Tensor,
    temperature: float,
    pad_token_id: int,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-prob of every completion token and entropy of the distribution that it was drawn from, in nats.

    Both [len(rows), T'] float32 with T' the longest completion among the rows, at temperature-scaled logits; 0 in
    padding. No more than chunk_tokens positions' logits are held at once. The entropy (full softmax) carries a gradient
    only with entropy_grad. RefusedError for a model whose logits are made in an unknown way.
    """
    hidden, completions, mask = completion_hidden(model, sequences, rows, pad_token_id)
    return score_hidden(model, hidden, completions, mask, temperature, chunk_tokens, entropy_grad)


def completion_hidden(
    model: PreTrainedModel, sequences: Sequences, rows: Tensor, pad_token_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The last hidden states that the rows' completion tokens are predicted from, and those tokens with their mask.

    hidden [len(rows), T', D] with its gradient, completions [len(rows), T'] int64, mask [len(rows), T'] bool, on the
    model's device; T' is the longest completion among the rows. Hidden states in padding are meaningless, but finite.
    ValueError for no rows, and for an empty prompt: nothing predicts its completion's first token.
    """
    if not len(rows) or not all(sequences.prompts[row] for row in rows.tolist()):
        raise ValueError("no rows, or a row with an empty prompt: there is nothing to predict its completion from")
    decoder = model.get_decoder()
    longest = int(sequences.lengths[rows].max())
    completions, mask = sequences.completions[rows, :longest], sequences.mask[rows, :longest]
    way = _hidden_in_line if shares_prompts(decoder) else _hidden_of_padded_rows
    hidden = way(decoder, sequences, rows, completions, mask, pad_token_id)
    return hidden, completions.to(hidden.device), mask.to(hidden.device)


def passes(
    budget: TokenBudget, model: PreTrainedModel, sequences: Sequences, rows: Tensor, work: Callable[[Tensor], None]
) -> None:
    """Call work(some rows), without gradient, until all rows (int64 indices) have passed, as many at once as the budget
    allows.

    If memory runs out, it is called for all rows again, so it must overwrite what it did. Raises as `TokenBudget.run`.
    """
    shared = shares_prompts(model.get_decoder())

    def work_through(micros: list[Tensor]) -> None:
        for micro in micros:
            work(micro)

    budget.run(lambda tokens: sequences.micro_batches(rows, tokens, shared), work_through)


def _hidden_in_line(
    decoder: PreTrainedModel, sequences: Sequences, rows: Tensor, completions: Tensor, mask: Tensor, pad_token_id: int
) -> Tensor:
    """[n, T', D], each prompt computed once."""
    prompts = sequences.distinct_prompts
    used, prompt_of_row = torch.unique(prompts.of_row[rows], return_inverse=True)
    lengths = prompts.lengths[used]
    tensors = (prompts.tokens[used, : int(lengths.max())], lengths, prompt_of_row, completions, mask.sum(1))
    layout = PrefixLayout.of(*(tensor.to(decoder.device) for tensor in tensors))
    # An embedding, since its backward pass adds up in a fixed order: a prompt's last token predicts for several rows.
    return functional.embedding(layout.predictors, prefix_hidden(decoder, layout))


def _hidden_of_padded_rows(
    decoder: PreTrainedModel, sequences: Sequences, rows: Tensor, completions: Tensor, mask: Tensor, pad_token_id: int
) -> Tensor:
    """[n, T', D], with prompts padded on the left and completions on the right."""
    prompts = [sequences.prompts[row] for row in rows.tolist()]
    width = max(map(len, prompts))
    padded = torch.full((len(prompts), width), pad_token_id)
    prompt_mask = torch.zeros_like(padded, dtype=torch.bool)
    for index, prompt in enumerate(prompts):
        padded[index, width - len(prompt) :] = torch.tensor(prompt)
        prompt_mask[index, width - len(prompt) :] = True

    # The last completion token predicts nothing that is scored, so it is not fed.
    inputs = torch.cat([padded, completions[:, :-1]], dim=1).to(decoder.device)
    attention = torch.cat([prompt_mask, mask[:, :-1]], dim=1).to(decoder.device)
    positions = (attention.cumsum(1) - 1).clamp_min(0)
    with attending_by(decoder):
        hidden: Tensor = decoder(
            input_ids=inputs, attention_mask=attention.long(), position_ids=positions, use_cache=False
        ).last_hidden_state
    return hidden[:, width - 1 : width - 1 + completions.shape[1]]


def score_hidden(
    model: PreTrainedModel,
    hidden: Tensor,
    completions: Tensor,
    mask: Tensor,
    temperature: float,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """The second half of `score_completions`, from the three tensors that `completion_hidden` returns."""
    logps, entropy = token_scores(
        hidden[mask], output_head(model), completions[mask], temperature, chunk_tokens, entropy_grad
    )
    return _unpacked(logps, mask), _unpacked(entropy, mask)


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
    """KL(model || reference) between the distributions that every completion token is drawn from, in nats.

    [len(rows), T'] float32 over the whole vocabulary, at temperature-scaled logits; 0 in padding; no gradient.
    """
    hidden, _, mask = completion_hidden(model, sequences, rows, pad_token_id)
    reference_hidden, _, _ = completion_hidden(reference, sequences, rows, pad_token_id)
    kl = token_kl(
        hidden[mask], output_head(model), reference_hidden[mask], output_head(reference), temperature, chunk_tokens
    )
    return _unpacked(kl, mask)


def _unpacked(values: Tensor, mask: Tensor) -> Tensor:
    """Values [M] of the true positions of mask [n, T'], put there; 0 elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


@dataclass(frozen=True)
class Scores:
    """[N, T] float32 on the CPU, 0 in padding and in rows that were not scored."""

    logps: Tensor
    entropy: Tensor
    values: Tensor

    @classmethod
    def empty(cls, sequences: Sequences) -> Scores:
        return cls(*(torch.zeros(sequences.completions.shape) for _ in range(3)))


@dataclass
class Scorer:
    """Scores rows of a rollout batch with a policy and, where there is one, a critic.

    budget: shared with other passes of the update; none: one of its own.
    """

    policy: PreTrainedModel
    critic: Critic | None
    spec: RunSpec
    pad_token_id: int
    budget: InitVar[TokenBudget | None] = None

    def __post_init__(self, budget: TokenBudget | None) -> None:
        self._budget = budget or TokenBudget.of(self.spec)

    @torch.inference_mode()
    def fill(self, scores: Scores, sequences: Sequences, rows: Tensor) -> None:
        """Score the rows (int64 indices) and write the results into `scores`."""
        spec = self.spec

        def score(micro: Tensor) -> None:
            hidden, completions, mask = completion_hidden(self.policy, sequences, micro, self.pad_token_id)
            logps, entropy = score_hidden(
                self.policy, hidden, completions, mask, spec.rollout.temperature, spec.train.logits_chunk_tokens
            )
            longest = logps.shape[1]
            scores.logps[micro, :longest] = logps.cpu()
            scores.entropy[micro, :longest] = entropy.cpu()
            if self.critic is not None:
                values = self.critic.values(sequences, micro, hidden, self.pad_token_id)
                scores.values[micro, :longest] = values.cpu()

        passes(self._budget, self.policy, sequences, rows, score)

    @torch.inference_mode()
    def logps_of(self, model: PreTrainedModel, sequences: Sequences) -> Tensor:
        """[N, T] the log-probs of all rows under another model."""
        logps = torch.zeros(sequences.completions.shape)
        spec = self.spec

        def score(micro: Tensor) -> None:
            scored, _ = score_completions(
                model, sequences, micro, spec.rollout.temperature, self.pad_token_id, spec.train.logits_chunk_tokens
            )
            logps[micro, : scored.shape[1]] = scored.cpu()

        passes(self._budget, model, sequences, torch.arange(len(logps)), score)
        return logps
