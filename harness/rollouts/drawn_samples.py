"""What became of each sample of a chunk: the host's record, filled from the decoding batches as they go on.

Shapes: N samples of the chunk, n of them in the batch, t tokens drawn so far, T longest completion. All on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.rollouts.engine import OnFinished
from harness.rollouts.stop_strings import ends_with_stop


class DrawnSamples:
    """Tokens and log-probs of N samples, and which of them the batch holds at present.

    decode: token ids -> text; only called where there are stop strings.
    on_finished: is told of each sample once, when it leaves the batch, or by `finish`; the first is `first_row`.
    """

    def __init__(
        self,
        samples: int,
        max_tokens: int,
        eos_token_ids: Sequence[int],
        stop: tuple[str, ...],
        decode: Callable[[list[int]], str],
        on_finished: OnFinished | None = None,
        first_row: int = 0,
    ) -> None:
        self._tokens = torch.zeros((samples, max_tokens), dtype=torch.int64)
        self._logps = torch.zeros((samples, max_tokens))
        self._eos = torch.tensor(list(eos_token_ids))
        self._stop, self._decode = stop, decode
        self._on_finished, self._first_row = on_finished, first_row
        self._stop_lengths = torch.full((samples,), max_tokens + 1)
        self._collected = 0
        self._in_batch = torch.arange(samples)

    def collect(self, tokens: Tensor, logps: Tensor) -> None:
        """Take over what the batch has drawn so far: both [t, n]."""
        new = slice(self._collected, len(tokens))
        self._tokens[self._in_batch, new] = tokens[new].T.cpu()
        self._logps[self._in_batch, new] = logps[new].T.cpu()
        self._collected = len(tokens)

    def stopped(self, tokens: Tensor, logps: Tensor) -> Tensor:
        """Collect too; bool [n], the samples in the batch whose text holds a stop string by now."""
        first_new = self._collected
        self.collect(tokens, logps)
        for sample in self._in_batch.tolist():
            if self._stop_lengths[sample] <= first_new:
                continue
            drawn = self._tokens[sample, : self._collected].tolist()
            for end in range(first_new + 1, self._collected + 1):
                if ends_with_stop(drawn[:end], self._stop, self._decode):
                    self._stop_lengths[sample] = end
                    break
        return self._stop_lengths[self._in_batch] <= self._collected

    def keep(self, places: Tensor) -> None:
        """The batch goes on with some of its samples only, by their places in it (int64)."""
        left = torch.ones(len(self._in_batch), dtype=torch.bool)
        left[places] = False
        self._tell(self._in_batch[left])
        self._in_batch = self._in_batch[places]

    def finish(self) -> None:
        """No sample goes on."""
        self._tell(self._in_batch)

    def _tell(self, samples: Tensor) -> None:
        if self._on_finished is None:
            return
        lengths, truncated = self._ends(samples)
        for sample, length, cut in zip(samples.tolist(), lengths.tolist(), truncated.tolist(), strict=True):
            self._on_finished(self._first_row + sample, self._tokens[sample, :length].tolist(), cut)

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """tokens and logps [N, T], meaningless beyond a sample's length; lengths [N]; truncated [N] bool."""
        return self._tokens, self._logps, *self._ends(torch.arange(len(self._tokens)))

    def _ends(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """lengths and truncated of these samples, of what is collected."""
        limit = self._tokens.shape[1]
        is_eos = torch.isin(self._tokens[samples, : self._collected], self._eos)
        eos_lengths = torch.where(is_eos.any(1), is_eos.int().argmax(1) + 1, limit + 1)
        ends = torch.minimum(eos_lengths, self._stop_lengths[samples])
        return ends.clamp_max(limit), ends > limit
