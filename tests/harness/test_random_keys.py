from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from harness.random_keys import permutation, random_key, uniform

KEYS = st.integers(-(2**63), 2**63 - 1)


def test_keys_are_frozen() -> None:
    """A change here changes every number of every cell."""
    assert random_key(0, "rollout") == -3585799968378912178
    assert random_key(3, "eval", example="1+2+3=", sample=5) == 5956947408303400057
    assert random_key(1, "data", step=7) == 5648620328880342176


def test_every_part_of_the_name_counts() -> None:
    names = list(itertools.product((0, 1, 11), ("rollout", "eval", "data"), (0, 1, 11), (0, 1, "1/1"), (0, 1, 11)))
    keys = {random_key(*name) for name in names}  # type: ignore[arg-type]
    assert len(keys) == len(names)


@given(KEYS)
def test_uniform_is_in_the_half_open_unit_interval(key: int) -> None:
    assert 0 <= uniform(key) < 1


def test_uniform_numbers_are_frozen_and_uniform() -> None:
    """A tenth of 5000 in each tenth, within five sigma."""
    assert (uniform(-1), uniform(0), uniform(-(2**63))) == (1 - 2**-53, 0, 0.5)
    tenths = [int(10 * uniform(random_key(0, "select", sample=sample))) for sample in range(5000)]
    assert all(abs(tenths.count(tenth) - 500) < 106 for tenth in range(10))


@given(st.integers(0, 300), KEYS)
def test_permutation_holds_every_index_once(count: int, key: int) -> None:
    assert sorted(permutation(count, key)) == list(range(count))


def test_permutations_are_frozen_and_uniform() -> None:
    """Each of the 6 orders of 3 about 1000 times in 6000: five sigma is 144."""
    assert permutation(8, 5) == [5, 2, 0, 7, 4, 6, 1, 3]
    counts = Counter(tuple(permutation(3, key)) for key in range(6000))
    assert len(counts) == 6
    assert all(abs(count - 1000) < 144 for count in counts.values())
