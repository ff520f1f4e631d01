from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.algorithms.cases import random_batch

BATCH = random_batch(0, rows=4, width=5)
TOKENS = int(BATCH.mask.sum())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"logp": torch.zeros(4)}, r"logp has shape \[4\]; it must be \[B, T\]"),
        ({"old_logp": torch.zeros(4, 6)}, r"old_logp has shape \[4, 6\]; it must be that of logp, \[4, 5\]"),
        ({"mask": torch.ones(5, 4)}, r"mask has shape \[5, 4\]"),
        ({"mask": torch.full((4, 5), 0.5)}, "values other than 0 and 1"),
        ({"advantages": torch.zeros(5)}, r"advantages has shape \[5\]; it must be \[4\] or \[4, 5\]"),
        ({"groups": torch.zeros(4, 1)}, r"groups has shape \[4, 1\]; it must be \[4\]"),
        ({"step_sequences": 3}, "step_sequences=3, but this micro-batch alone has 4"),
        ({"step_tokens": TOKENS - 1}, f"step_tokens={TOKENS - 1}, but this micro-batch alone has {TOKENS}"),
        ({"step_tokens": 0}, "step_tokens=0; it must be at least 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens=0; it must be at least 1"),
        ({"step_groups": 0}, "step_groups=0; it must be at least 1"),
        ({"step_micro_batches": 0}, "step_micro_batches=0; it must be at least 1"),
        *(
            ({name: torch.zeros(4, 1)}, rf"{name} has shape \[4, 1\]; it must be that of logp, \[4, 5\]")
            for name in ("ref_logp", "sampler_logp", "entropy", "selected", "values", "old_values", "returns")
        ),
        ({"selected": torch.zeros(4, 5)}, "selected is of torch.float32; it must be bool"),
        ({"group_tokens": torch.ones(5)}, r"group_tokens has shape \[5\]; it must be \[4\]"),
        ({"group_tokens": BATCH.mask.sum(1) - 1}, "group_tokens has a group with fewer tokens than one of its rows"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(BATCH, **change)


def test_the_step_may_be_larger_than_the_batch() -> None:
    assert replace(BATCH, step_sequences=4, step_tokens=TOKENS).step_tokens == TOKENS
    assert replace(BATCH, step_sequences=100, step_tokens=1000).step_sequences == 100


@pytest.mark.parametrize("name", ["step_sequences", "step_tokens", "step_groups", "step_micro_batches"])
def test_a_batch_with_numbers_of_a_step_is_a_part_of_it(name: str) -> None:
    assert BATCH.is_whole_step
    assert replace(BATCH, group_tokens=BATCH.mask.sum(1)).is_whole_step
    change: dict[str, Any] = {name: 1000}
    assert not replace(BATCH, **change).is_whole_step
