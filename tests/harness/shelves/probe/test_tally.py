from __future__ import annotations

import pytest
import torch

from harness.shelves.probe.moments import BLOCKS, EstimateTally


def drawn(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 7, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [4, BLOCKS, 40])
def test_inner_products_are_those_of_the_estimates(count: int) -> None:
    estimates, reference = drawn(count, 0), drawn(5, 1)
    tally = EstimateTally(count, reference)
    for estimate in estimates:
        tally.add(estimate)
    found = tally.inner_products()
    blocks = min(BLOCKS, count)
    assert sorted(set(found.blocks.tolist())) == list(range(blocks))
    assert max(torch.bincount(torch.tensor(found.blocks))) - min(torch.bincount(torch.tensor(found.blocks))) <= 1
    sums = torch.stack([estimates[torch.tensor(found.blocks) == block].sum(0) for block in range(blocks)])
    for measured, expected in (
        (found.norms, estimates.norm(dim=1)),
        (found.with_reference, estimates @ reference.T),
        (found.reference, reference @ reference.T),
        (found.block_sums, sums @ sums.T),
    ):
        assert torch.allclose(torch.tensor(measured).float(), expected, atol=1e-5)


def test_a_missing_estimate_is_told() -> None:
    tally = EstimateTally(4, drawn(5, 1))
    tally.add(drawn(1, 0)[0])
    with pytest.raises(ValueError):
        tally.inner_products()
