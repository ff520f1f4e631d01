from __future__ import annotations

import pytest

from evals.sampler import ks_of


@pytest.mark.parametrize(
    ("n", "ks"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 3)),
        (4, (1, 2, 4)),
        (6, (1, 2, 6)),
        (32, (1, 2, 4, 8, 16, 32)),
        (64, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_ks_double_up_to_half_of_the_samples(n, ks):
    assert ks_of(n) == ks
