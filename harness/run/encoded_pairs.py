"""Preference pairs as token ids, in memory and in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness.errors import RefusedError
from harness.models.language_model import weights_digest
from harness.records.files import write_atomic
from harness.run.prompts import places_of_step
from harness.training.preference_update import PairBatch
from harness.training.sequences import Sequences


@dataclass(frozen=True)
class PairCounts:
    """How many pairs of a source were kept, dropped and truncated.

    rows = kept + prompt_too_long + side_too_long + equal_after_truncation. `truncated` counts the kept pairs with a
    truncated side.
    """

    rows: int
    kept: int
    prompt_too_long: int
    side_too_long: int
    equal_after_truncation: int
    truncated: int

    @property
    def dropped(self) -> str:
        reasons = {
            "leave no room for a completion": self.prompt_too_long,
            "have a side that is too long": self.side_too_long,
            "are the same on both sides once cut": self.equal_after_truncation,
        }
        return ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count) or "none is dropped"


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, concatenated."""

    values: Tensor
    """[sum of lengths]"""
    lengths: Tensor
    """[N] int64"""

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Ragged:
        return cls(torch.cat(list(rows)), torch.tensor([len(row) for row in rows]))

    @cached_property
    def _ends(self) -> list[int]:
        return self.lengths.cumsum(0).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tensor:
        return self.values[self._ends[row] - int(self.lengths[row]) : self._ends[row]]

    def padded(self, rows: Sequence[int]) -> Tensor:
        """Return the rows as a tensor [len(rows), longest length], padded with zeros on the right."""
        return pad_sequence([self[row] for row in rows], batch_first=True)


@dataclass(frozen=True)
class EncodedPairs:
    """P pairs as token ids (int32)."""

    prompts: Ragged
    chosen: Ragged
    rejected: Ragged
    groups: Tensor
    """[P] int64. Pairs whose prompts have the same tokens are in the same group."""
    counts: PairCounts
    ref_chosen_logps: Ragged | None = None
    """The log-prob of every completion token under the starting weights (float32, nats).

    This and ref_rejected_logps are None if the objective has no reference.
    """
    ref_rejected_logps: Ragged | None = None

    def __len__(self) -> int:
        return len(self.groups)

    def of_step(self, step: int, pairs_per_step: int, seed: int) -> list[int]:
        """Return the indices of the pairs of a step (from 1). Raises RefusedError as `require`.

        Each pair occurs once per epoch, in an order reshuffled each epoch. A step may continue into the next epoch.
        """
        self.require(pairs_per_step)
        return places_of_step(len(self), seed, step, pairs_per_step)

    def require(self, pairs_per_step: int) -> None:
        """Raise RefusedError if a step needs more pairs than there are."""
        if pairs_per_step > len(self):
            raise RefusedError(
                "run.few_pairs_left",
                pairs_per_step=pairs_per_step,
                n_pairs=self.counts.rows,
                n_left=len(self),
                dropped=self.counts.dropped,
            )

    def batch(self, pairs: Sequence[int]) -> PairBatch:
        logps = None
        if self.ref_chosen_logps is not None and self.ref_rejected_logps is not None:
            sides = (self.ref_chosen_logps, self.ref_rejected_logps)
            # All chosen sides come first, then all rejected sides: [2P, longest].
            logps = pad_sequence([side[pair] for side in sides for pair in pairs], batch_first=True)
        chosen, rejected = (self._sequences(side, pairs) for side in (self.chosen, self.rejected))
        return PairBatch(chosen, rejected, self.groups[list(pairs)], logps)

    def _sequences(self, side: Ragged, pairs: Sequence[int]) -> Sequences:
        return Sequences(
            [self.prompts[pair].tolist() for pair in pairs], side.padded(pairs).long(), side.lengths[list(pairs)]
        )


def save_pairs(path: Path, pairs: EncodedPairs, provenance: Mapping[str, object]) -> None:
    """Write the pairs as one safetensors file, completely or not at all.

    Its metadata contain the counts and the provenance as JSON.
    """
    tensors = dict(_tensors(pairs))
    header = {"counts": asdict(pairs.counts), "provenance": provenance, "digest": weights_digest(tensors)}
    content = save(tensors, {"pairs": json.dumps(header, ensure_ascii=False)})
    write_atomic(path, lambda aside: aside.write_bytes(content))


def load_pairs(path: Path) -> EncodedPairs:
    """Return the pairs that `save_pairs` wrote. Raises RefusedError if the file has been changed or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = json.loads((file.metadata() or {})["pairs"])
        if weights_digest(tensors) != header["digest"]:
            raise ValueError("its content does not have the digest that it was written with")
        return _from_tensors(tensors, PairCounts(**header["counts"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RefusedError("run.encoded_pairs_damaged", path=path, error=error) from error


def _tensors(encoded: EncodedPairs) -> Iterator[tuple[str, Tensor]]:
    for name in ("prompts", "chosen", "rejected"):
        ragged: Ragged = getattr(encoded, name)
        yield f"{name}.tokens", ragged.values
        yield f"{name}.lengths", ragged.lengths
    yield "groups", encoded.groups
    if encoded.ref_chosen_logps is not None and encoded.ref_rejected_logps is not None:
        yield "chosen.ref_logps", encoded.ref_chosen_logps.values
        yield "rejected.ref_logps", encoded.ref_rejected_logps.values


def _from_tensors(tensors: dict[str, Tensor], counts: PairCounts) -> EncodedPairs:
    prompts, chosen, rejected = (
        Ragged(tensors[f"{name}.tokens"], tensors[f"{name}.lengths"]) for name in ("prompts", "chosen", "rejected")
    )
    encoded = EncodedPairs(prompts, chosen, rejected, tensors["groups"], counts)
    if "chosen.ref_logps" not in tensors:
        return encoded
    return replace(
        encoded,
        # Each completion token has one log-prob, so the lengths are those of the completions.
        ref_chosen_logps=Ragged(tensors["chosen.ref_logps"], chosen.lengths),
        ref_rejected_logps=Ragged(tensors["rejected.ref_logps"], rejected.lengths),
    )
