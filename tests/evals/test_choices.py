"""Which choice is made from log-likelihoods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.choices import COMPARISONS, Choices, Comparison, Continuation, Likelihood

TEXTS = st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=5)


def choose(comparison: Comparison, texts: list[str], logps: list[float], greedy: bool = False) -> int | None:
    choices = Choices(texts, [Continuation("2+2=", text) for text in texts], comparison)
    return choices.choose([Likelihood(logp, 1, greedy) for logp in logps])


@pytest.mark.slow
@given(TEXTS, st.data())
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_it_is_numpys_argmax_of_what_the_comparison_says(
    comparison: Comparison, texts: list[str], data: st.DataObject
) -> None:
    count = len(texts) * (1 + (comparison == "acc_mutual_info"))
    logps = data.draw(st.lists(st.floats(-50, 0), min_size=count, max_size=count))
    given_question = np.array(logps[: len(texts)])
    values = {
        "acc": given_question,
        "acc_norm": given_question / np.array([float(len(text)) for text in texts]),
        "acc_bytes": given_question / np.array([float(len(text.encode())) for text in texts]),
        "acc_mutual_info": given_question - np.array(logps[-len(texts) :]),
    }
    assert choose(comparison, texts, logps) == int(np.argmax(values[comparison]))


@pytest.mark.parametrize("greedy", [True, False])
def test_a_single_text_is_chosen_if_it_is_the_greedy_one(greedy: bool) -> None:
    assert choose("greedy", ["4"], [-0.1], greedy) == (0 if greedy else None)
