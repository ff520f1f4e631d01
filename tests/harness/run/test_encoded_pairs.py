from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from harness.errors import RefusedError
from harness.run.encoded_pairs import EncodedPairs, PairCounts, Ragged, load_pairs, save_pairs
from harness.run.prompts import Uniform
from tests.harness.run.test_prompt_order import ids, problems
from tests.refusals import refuses


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged.of([torch.tensor(row, dtype=torch.int32) for row in rows])


def encoded(count: int) -> EncodedPairs:
    """Pair i: prompt [i, i], chosen i + 1 times 1, rejected 2, 3."""
    chosen, rejected = ragged([[1] * (at + 1) for at in range(count)]), ragged([[2, 3]] * count)
    return EncodedPairs(
        prompts=ragged([[at, at] for at in range(count)]),
        chosen=chosen,
        rejected=rejected,
        groups=torch.arange(count),
        counts=PairCounts(count, count, 0, 0, 0, 0),
        ref_chosen_logps=Ragged(-torch.arange(1.0, len(chosen.values) + 1), chosen.lengths),
        ref_rejected_logps=Ragged(torch.arange(len(rejected.values)) - 100.0, rejected.lengths),
    )


@given(st.lists(st.lists(st.integers(0, 9), min_size=1), min_size=1))
def test_ragged_rows_are_those_that_were_given(rows: list[list[int]]) -> None:
    stored = ragged(rows)
    assert len(stored) == len(rows)
    assert [stored[at].tolist() for at in range(len(rows))] == rows
    padded = stored.padded(range(len(rows)))
    assert padded.tolist() == [row + [0] * (padded.shape[1] - len(row)) for row in rows]


def test_batches_hold_the_pairs_in_the_order_asked_for_with_their_reference_log_probs() -> None:
    batch = encoded(4).batch([2, 0])
    assert batch.chosen.prompts == batch.rejected.prompts == [[2, 2], [0, 0]]
    assert batch.chosen.completions.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.chosen.completions.dtype == torch.int64
    assert batch.chosen.lengths.tolist() == [3, 1]
    assert batch.rejected.completions.tolist() == [[2, 3], [2, 3]]
    assert batch.groups.tolist() == [2, 0]
    assert batch.ref_logps is not None
    assert batch.ref_logps.tolist() == [[-4, -5, -6], [-1, 0, 0], [-96, -95, 0], [-100, -99, 0]]


class TestOrder:
    def test_is_that_of_uniform_prompts(self) -> None:
        for step in range(1, 9):
            of_prompts = ids(Uniform(problems(10), seed=3).draw(step, 4, 0.0))
            assert [f"p{at}" for at in encoded(10).of_step(step, 4, seed=3)] == of_prompts

    def test_a_step_needs_different_pairs(self) -> None:
        counts = PairCounts(rows=9, kept=3, prompt_too_long=1, side_too_long=2, equal_after_truncation=3, truncated=0)
        pairs = replace(encoded(3), counts=counts)
        assert len(pairs.of_step(1, 3, 0)) == 3
        with refuses(RefusedError, "run.few_pairs_left", pairs_per_step=4, n_pairs=9, n_left=3) as refused:
            pairs.of_step(1, 4, 0)
        assert re.findall(r"\d", str(refused.value.fields["dropped"])) == ["1", "2", "3"]


class TestFile:
    @pytest.mark.parametrize("reference", [True, False])
    def test_what_is_read_is_what_was_written(self, tmp_path: Path, reference: bool) -> None:
        pairs = encoded(4) if reference else replace(encoded(4), ref_chosen_logps=None, ref_rejected_logps=None)
        save_pairs(tmp_path / "pairs", pairs, {})
        read = load_pairs(tmp_path / "pairs")
        assert read.counts == pairs.counts
        for name in ("prompts", "chosen", "rejected", "ref_chosen_logps", "ref_rejected_logps"):
            before, after = getattr(pairs, name), getattr(read, name)
            assert (before is None) == (after is None) == (not reference and name.startswith("ref"))
            if before is not None:
                assert torch.equal(before.values, after.values)
                assert torch.equal(before.lengths, after.lengths)

    def test_is_whole_or_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(descriptor: int) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError):
            save_pairs(tmp_path / "pairs", encoded(4), {})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "headless", "not json", "another"])
    def test_that_is_damaged_is_refused(self, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "pairs"
        save_pairs(path, encoded(4), {})
        content = path.read_bytes()
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata())
        match damage:
            case "cut":
                path.write_bytes(content[:-5])
            case "flipped":
                path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            case "emptied":
                path.write_bytes(b"")
            case "headless":
                save_file(tensors, path)
            case "not json":
                save_file(tensors, path, {"pairs": "{"})
            case "another":
                other = json.loads(metadata["pairs"])
                del other["counts"]["kept"]
                save_file(tensors, path, {"pairs": json.dumps(other)})
        with refuses(RefusedError, "run.encoded_pairs_damaged", path="pairs"):
            load_pairs(path)
