"""Decoding: batches of completions, the step that samples the next tokens with keyed noise, and reuse of batches.

Batches are kept between calls. On CUDA their steps are recorded as graphs, so that the host launches one graph per
token. A graph has a fixed shape and runs without the host. So on CUDA there are few shapes, and the host rarely reads
the sampled tokens (`BatchShapes`). Without graphs neither restriction is needed.

Shapes: N samples, R rows, S columns of the cache, T tokens of the longest completion, V vocabulary. A row is one
sequence that the model computes. Samples with the same prompt and the same tokens so far may share a row until their
tokens differ. Prompts are padded on the left, so that all rows write the same column.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from operator import lt

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.base import SamplingParams
from harness.engines.torch.passes import Arena, BatchShapes, LayerMasks, Layers, OneTokenPass, StaticCache

KEPT_BYTES = 2**26
"""Cache memory that is kept between calls on a CPU. For small models, allocating it anew costs more than using it."""
MOST_GRAPHS = 64
"""Maximum number of recorded steps that an engine keeps. Each takes a few megabytes of GPU memory."""

# splitmix64 (Steele, Lea and Flood 2014), in the wrapping signed arithmetic of torch.int64.
_GOLDEN = -0x61C8864680B583EB
_MIX_1, _MIX_2 = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
# The largest float32 below 1.
_BELOW_ONE = 1 - 2.0**-24
CACHED_ELEMENTS = 2**16
"""Noise is computed in blocks of this many elements, so that its twenty passes stay in the CPU's cache."""


@dataclass(frozen=True)
class Decoder:
    """A model, with its one-token pass, masks and end-of-sequence tokens."""

    model: PreTrainedModel
    one_token_pass: OneTokenPass
    masks: LayerMasks
    eos_token_ids: Tensor
    """[E] int64, on the model's device."""


@dataclass(frozen=True)
class Survivors:
    """The part of a batch that continues decoding, as int64 indices into the batch's samples and rows."""

    samples: Tensor
    """[n]: the samples that continue."""
    rows: Tensor
    """[r]: the rows that they need. A row whose samples diverge occurs several times. Most rows keep their index."""
    last_tokens: Tensor
    """[r]: the token that each row feeds to the model next."""
    row_of_sample: Tensor | None
    """[n]: each sample's index among the r rows. None if each sample has its own row, in the order of the samples."""
    part: bool
    """True if the samples of at least one row diverge."""


class DecodingBatch:
    """Room for N samples in R rows. The first `count` samples are in use, and the first `rows` rows are computed.

    Some computed rows may be padding. A step uses only tensors at fixed addresses, and no host value that changes from
    token to token. So it can be recorded and replayed.
    """

    def __init__(
        self, decoder: Decoder, like: Layers, samples: int, rows: int, columns: int, max_tokens: int, arena: Arena
    ) -> None:
        """Allocate the tensors of a batch.

        like: keys and values with the same heads. max_tokens: T. arena: the memory of the cache.
        """
        device = decoder.model.device

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self._decoder = decoder
        self.count, self.rows, self.columns = samples, rows, columns
        self.limits = (samples, rows, columns, max_tokens)
        """The sizes (N, R, S, T)."""
        self._column, self._drawn = integers(1), integers(1)
        self._column_numbers = torch.arange(columns, device=device)
        self._last_token, self._last_position = integers(rows), integers(rows)
        self._visible = torch.zeros((rows, columns), dtype=decoder.model.dtype, device=device)
        self.cache = StaticCache(like, rows, columns, self._column, arena)
        self.row_of_sample: Tensor | None = None
        """[N] index of each sample's row, or None if sample i is in row i."""
        self._keys = integers(samples)
        self.ended = torch.zeros(samples, dtype=torch.bool, device=device)
        """[N] bool, set by an end-of-sequence token or by the host."""
        self.tokens = integers(max_tokens, samples)
        """[T, N]. The host keeps count of how many have been sampled."""
        self.logps = torch.zeros((max_tokens, samples), device=device)

    def start(self, prompt_tokens: Tensor, width: int, keys: Tensor, row_of_sample: Tensor | None) -> None:
        """Begin with r prompts and n samples. The caller must fill the cache with the prompts.

        prompt_tokens [r]: length of each row's prompt.
        width: number of columns that the prompts take, padded on the left.
        keys [n]: the samples' noise keys.
        row_of_sample [n]: index of each sample's row, or None if sample i is in row i.
        """
        rows = len(prompt_tokens)
        self._begin(len(keys), row_of_sample)
        # `step` increments the column before it writes, and also the positions below.
        self._column.fill_(width - 1)
        self._drawn.zero_()
        self._last_position[:rows] = prompt_tokens - 1
        hidden = (self._column_numbers < width - prompt_tokens[:, None]) | (self._column_numbers >= width)
        self._visible[:rows] = torch.where(hidden, -torch.inf, 0.0)
        self._keys[: self.count] = keys

    def take_over(self, other: DecodingBatch, survivors: Survivors, used_columns: int) -> None:
        """Continue with the survivors of another batch, or of this batch itself."""
        # Read this before `_begin` zeroes the positions, because `other` may be this batch.
        last_positions = other._last_position[survivors.rows]
        self._begin(len(survivors.samples), survivors.row_of_sample)
        self._column.copy_(other._column)
        self._drawn.copy_(other._drawn)
        rows = slice(len(survivors.rows))
        self._last_token[rows] = survivors.last_tokens
        self._last_position[rows] = last_positions
        self._visible[rows, :used_columns] = other._visible[:, :used_columns].index_select(0, survivors.rows)
        self._visible[rows, used_columns:] = -torch.inf
        self._keys[: self.count] = other._keys[survivors.samples]
        self.cache.take_over(other.cache, survivors.rows, used_columns)

    def _begin(self, count: int, row_of_sample: Tensor | None) -> None:
        self.count, self.row_of_sample = count, row_of_sample
        self.ended[:count] = False
        self._last_token.zero_()
        self._last_position.zero_()

    def draw(self, logits: Tensor, params: SamplingParams) -> None:
        """Sample the next token of each sample from the logits [R, V] of all rows, or [r, V] of the first r rows."""
        if self.row_of_sample is not None:
            logits = logits.index_select(0, self.row_of_sample)
        some = slice(len(logits))
        tokens, logps = sample(logits, self._keys[some], self._drawn, params.temperature, params.top_p, params.top_k)
        # The position is a tensor, so that a recorded step writes to the next position at each replay.
        self.tokens[:, some].index_copy_(0, self._drawn, tokens[None])
        self.logps[:, some].index_copy_(0, self._drawn, logps[None])
        self.ended[some].logical_or_((tokens[:, None] == self._decoder.eos_token_ids).any(1))
        self._drawn.add_(1)
        if self.row_of_sample is None:
            self._last_token[some] = tokens

    def survivors(self, drawn: int) -> Survivors:
        """Return the samples that have not ended after `drawn` tokens, and the rows that they need."""
        samples = (~self.ended[: self.count]).nonzero()[:, 0]
        if self.row_of_sample is None:
            samples = samples[_in_place(samples)]
            return Survivors(samples, samples, self.tokens[drawn - 1].index_select(0, samples), None, False)
        last_tokens = self.tokens[drawn - 1].index_select(0, samples)
        rows = self.row_of_sample.index_select(0, samples)
        # Samples with the same row and the same last token still share a row. Both are packed into one integer, with
        # the token id in the lower 32 bits.
        prefixes, row_of_sample = torch.unique(rows << 32 | last_tokens, return_inverse=True)
        # The prefixes are sorted, so two adjacent prefixes with the same row mean that its samples diverge.
        part = bool((prefixes[1:] >> 32 == prefixes[:-1] >> 32).any())
        order = _in_place(prefixes >> 32)
        prefixes = prefixes[order]
        row_of_sample = order.argsort()[row_of_sample]
        rows, last_tokens = prefixes >> 32, prefixes & (1 << 32) - 1
        if len(prefixes) < len(samples):
            return Survivors(samples, rows, last_tokens, row_of_sample, part)
        return Survivors(samples[row_of_sample.argsort()], rows, last_tokens, None, part)

    def feed(self, survivors: Survivors) -> None:
        """Continue in the same rows, if no row's samples diverge. Samples that have ended stay in the batch."""
        self._last_token[survivors.rows] = survivors.last_tokens

    def step(self, params: SamplingParams, read_columns: int) -> None:
        """Run each row's last token through the model and sample the next tokens of the samples.

        read_columns: number of columns that attention reads, at least all in use, including the fed tokens' column.
        """
        self._column.add_(1)
        self._last_position.add_(1)
        rows = slice(self.rows)
        self._visible[rows].index_fill_(1, self._column, 0.0)
        self.cache.read_columns = read_columns
        masks = self._decoder.masks.of(
            self._visible[rows, :read_columns], self._column, self._column_numbers[:read_columns]
        )
        fed, positions = self._last_token[rows], self._last_position[rows]
        self.draw(self._decoder.one_token_pass(fed, positions, masks, self.cache), params)


def _in_place(rows: Tensor) -> Tensor:
    """Return an order [r] int64 of the ascending `rows` [r] that puts row i < r at index i if `rows` contains it."""
    # The first occurrence of a row stays in place. Repetitions and rows beyond r fill the free places.
    stays = rows < len(rows)
    stays[1:] &= rows[1:] != rows[:-1]
    taken = torch.zeros_like(rows).index_add_(0, rows.clamp_max(len(rows) - 1), stays.long())
    free = taken.argsort(stable=True)
    return torch.where(stays, rows, free[(~stays).cumsum(0) - 1]).argsort()


class Batches:
    """Makes the batches of one engine. At most two may be in use at a time: the current batch and its successor."""

    def __init__(self, decoder: Decoder, shapes: BatchShapes) -> None:
        self._decoder, self._shapes = decoder, shapes
        self._on_cuda = decoder.model.device.type == "cuda"
        self._arenas = [Arena(), Arena()]
        self._eager: DecodingBatch | None = None
        self._graphed: dict[int, GraphedBatch] = {}
        self._graphs: Graphs = OrderedDict()
        self._largest = (0, 0, 0)
        """The most rows, columns and tokens for which the first arena and the CUDA batches have room."""
        # A MemPool object, not just its handle: a pool without graphs can be reused only while the object is alive.
        self._pool = torch.cuda.MemPool() if self._on_cuda else None
        self._weight_addresses: list[int] = []

    def begin_call(self) -> None:
        """Drop the graphs if the weights have moved, because graphs contain the addresses of weights."""
        if self._on_cuda:
            addresses = [weight.data_ptr() for weight in self._decoder.model.parameters()]
            if addresses != self._weight_addresses:
                self.forget()
                self._weight_addresses = addresses

    def forget(self) -> None:
        """Free all memory that is kept between calls, and the graphs, which contain its addresses."""
        self._graphs.clear()
        self._graphed.clear()
        self._arenas = [Arena(), Arena()]
        self._eager = None
        self._largest = (0, 0, 0)

    def end_call(self) -> None:
        if not self._on_cuda and sum(arena.bytes for arena in self._arenas) > KEPT_BYTES:
            self.forget()

    def make(self, like: Layers, samples: int, rows: int, used: int, most: int, max_tokens: int) -> DecodingBatch:
        """Return a batch for this many samples and rows, with `used` of at most `most` columns in use.

        like: keys and values with the same heads.
        """
        columns = self._shapes.columns(used, most)
        if not self._shapes.bucketed:
            return self._eager_batch(like, samples, rows, columns, max_tokens)
        rows = self._shapes.rows(rows)
        if self._on_cuda:
            batch: DecodingBatch = self._graphed_batch(like, rows, columns, max_tokens)
        else:
            batch = DecodingBatch(self._decoder, like, rows, rows, columns, max_tokens, Arena())
        batch.cache.zero_beyond(used)
        return batch

    def _eager_batch(self, like: Layers, samples: int, rows: int, columns: int, max_tokens: int) -> DecodingBatch:
        """Return a batch with room for one row per sample. Reuses the last batch if it is large enough."""
        needed = samples, samples, columns, max_tokens
        if self._eager is None or any(map(lt, self._eager.limits, needed)):
            # The current batch keeps its arena until the new batch has taken over from it.
            self._arenas.reverse()
            self._eager = DecodingBatch(self._decoder, like, *needed, self._arenas[0])
            # Without graphs, the host knows the column that a step writes.
            self._eager.cache.writes_last = True
        self._eager.rows = rows
        return self._eager

    def _graphed_batch(self, like: Layers, rows: int, columns: int, max_tokens: int) -> GraphedBatch:
        """Return the batch with this many rows.

        All batches have as many columns as the largest. So a batch with fewer rows uses the first rows of the same
        memory. A batch that takes over from a larger one reads each tensor before it writes to it.
        """
        largest = max(rows, self._largest[0]), max(columns, self._largest[1]), max(max_tokens, self._largest[2])
        if largest != self._largest:
            # Free the old memory before allocating more.
            self.forget()
            self._largest = largest
        most_rows, columns, max_tokens = largest
        # The first batch allocates the memory for all, so it must have the most rows.
        for some in dict.fromkeys([rows] if self._graphed else [most_rows, rows]):
            if some not in self._graphed:
                self._graphed[some] = GraphedBatch(
                    self._decoder, like, some, columns, max_tokens, self._arenas[0], self._graphs, self._pool
                )
        return self._graphed[rows]


Graphs = OrderedDict[tuple[int, SamplingParams, int], torch.cuda.CUDAGraph]
"""(rows, sampling parameters, columns read) -> recorded step; the least recently used comes first."""


class GraphedBatch(DecodingBatch):
    """A batch whose steps are recorded and replayed.

    A graph contains the addresses of the batch's tensors and of the model's weights. They may be written in place, but
    not replaced. `pool` is memory for the temporary tensors of all graphs. They can share it, because no two graphs run
    at once and none reads what another has left there.
    """

    def __init__(
        self,
        decoder: Decoder,
        like: Layers,
        rows: int,
        columns: int,
        max_tokens: int,
        arena: Arena,
        graphs: Graphs,
        pool: torch.cuda.MemPool | None,
    ) -> None:
        super().__init__(decoder, like, rows, rows, columns, max_tokens, arena)
        self._graphs, self._pool = graphs, pool

    def step(self, params: SamplingParams, read_columns: int) -> None:
        key = (self.rows, params, read_columns)
        if key in self._graphs:
            self._graphs.move_to_end(key)
            self._graphs[key].replay()
            return
        # The first step runs eagerly on a side stream, because some initialisation is forbidden while recording.
        # Recording itself computes nothing (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            super().step(params, read_columns)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = None if self._pool is None else self._pool.id
        with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]  # torch types the id of a pool in two ways
            super().step(params, read_columns)
        self._graphs[key] = graph
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)


def _xor_shifted(bits: Tensor, count: int) -> Tensor:
    """Compute bits ^= bits >> count in place, with a logical shift. torch shifts signed integers arithmetically."""
    return bits.bitwise_xor_((bits >> count).bitwise_and_((1 << (64 - count)) - 1))


def _mix(bits: Tensor) -> Tensor:
    """Overwrite `bits` with its hash."""
    _xor_shifted(bits, 30).mul_(_MIX_1)
    _xor_shifted(bits, 27).mul_(_MIX_2)
    return _xor_shifted(bits, 31)


def exponential_noise(keys: Tensor, position: int | Tensor, vocab_size: int) -> Tensor:
    """Sample standard exponential noise [B, V] for one position of the samples with int64 keys [B].

    A row's noise does not depend on the other rows. If E is this noise, argmax(p / E) is a sample from p.
    """
    counter = torch.as_tensor(position, device=keys.device) + 1
    stream = _mix(keys + counter * _GOLDEN)
    tokens = torch.arange(1, vocab_size + 1, device=keys.device).mul_(_GOLDEN)
    noise = torch.empty((len(keys), vocab_size), device=keys.device)
    rows = max(1, CACHED_ELEMENTS // vocab_size)
    for start in range(0, len(noise), rows):
        bits = _mix(stream[start : start + rows, None] + tokens)
        # 40 bits keep small values accurate in float32. The smallest value wins.
        block = noise[start : start + rows].copy_((bits >> 24).bitwise_and_((1 << 40) - 1))
        # float32 rounds the largest values to 1, whose noise is infinite. Even a token of probability 1 would lose.
        block.add_(0.5).mul_(-(2.0**-40)).clamp_min_(-_BELOW_ONE).log1p_().neg_()
    return noise


def sampling_logps(logits: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """Return float32 log-probs [B, V] of the sampling distribution, with -inf for excluded tokens.

    Temperature 0 puts all probability on the likeliest token. top_k keeps the k likeliest tokens. Of these, top_p keeps
    the smallest set of likeliest tokens with at least that total probability (Holtzman et al. 1904.09751). The kept
    tokens are renormalised.
    """
    logits = logits.float()
    if temperature == 0:
        point_mass = torch.full_like(logits, -torch.inf)
        return point_mass.scatter_(1, logits.argmax(-1, keepdim=True), 0.0)
    logps = torch.log_softmax(_scaled(logits, temperature), dim=-1)
    if top_k and top_k < logps.shape[-1]:
        kth = logps.topk(top_k, dim=-1).values[:, -1:]
        logps = torch.log_softmax(logps.masked_fill(logps < kth, -torch.inf), dim=-1)
    if top_p < 1:
        ordered, order = logps.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.exp().cumsum(-1) - ordered.exp()
        # A token is excluded if the tokens before it already have the mass, so the likeliest token always stays.
        excluded = torch.zeros_like(mass_before, dtype=torch.bool).scatter_(1, order, mass_before >= top_p)
        logps = torch.log_softmax(logps.masked_fill(excluded, -torch.inf), dim=-1)
    return logps


def sample(
    logits: Tensor, keys: Tensor, position: int | Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[Tensor, Tensor]:
    """Sample tokens [B] from logits [B, V] with the noise of keys [B] at this position.

    Returns the tokens and their float32 log-probs [B], both from the distribution of `sampling_logps`.
    """
    if temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, torch.zeros_like(tokens, dtype=torch.float32)
    if top_p < 1 or 0 < top_k < logits.shape[-1]:
        probabilities = sampling_logps(logits, temperature, top_p, top_k).exp_()
    else:
        probabilities = torch.softmax(_scaled(logits.float(), temperature), dim=-1)
    return draw(probabilities, keys, position)


def draw(probabilities: Tensor, keys: Tensor, position: int | Tensor) -> tuple[Tensor, Tensor]:
    """Sample tokens [B] from probabilities [B, V] with the noise of keys [B] at this position.

    Returns the tokens and their log-probs.
    """
    if probabilities.is_cuda:
        from harness.engines.torch.cuda_noise import first_arrivals

        tokens = first_arrivals(probabilities, keys, position)
    else:
        noise = exponential_noise(keys, position, probabilities.shape[-1])
        # argmin(E / p) is argmax(p / E): the first arrival among Poisson processes with rates p.
        tokens = torch.div(noise, probabilities, out=noise).argmin(dim=-1)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log_()


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1 else logits / temperature
