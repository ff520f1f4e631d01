from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from harness.engines.torch import decoding
from harness.engines.torch.decoding import draw, exponential_noise, sample, sampling_logps
from harness.random_keys import random_key

P_VALUE = 1e-3
"""Keys are fixed, so a test that passes once passes always; a wrong distribution is off by far more."""


def keys(count: int, first: int = 0) -> Tensor:
    return torch.tensor([random_key(first + sample, "rollout") for sample in range(count)])


class TestExponentialNoise:
    def test_is_splitmix64_of_key_position_and_token(self) -> None:
        """Against unsigned integers of Python; frozen, as a change here changes every number of every cell."""
        golden, word = 0x9E3779B97F4A7C15, 2**64

        def mix(bits: int) -> int:
            bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % word
            bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % word
            return bits ^ (bits >> 31)

        def expected(key: int, position: int, token: int) -> float:
            stream = mix((key + (position + 1) * golden) % word)
            bits = mix((stream + (token + 1) * golden) % word)
            return -math.log1p(-((bits >> 24) + 0.5) / 2**40)

        several = torch.tensor([0, -1, 2**62, -(2**63)])
        for row, key in enumerate(several.tolist()):
            noise = exponential_noise(several, position=3, vocab_size=20)[row].tolist()
            assert noise == pytest.approx([expected(key, 3, token) for token in range(20)], rel=1e-5)

    def test_is_unit_exponential(self) -> None:
        noise = exponential_noise(keys(400), position=0, vocab_size=100).flatten()
        assert stats.kstest(noise.numpy(), "expon").pvalue > P_VALUE

    @pytest.mark.slow
    @pytest.mark.parametrize("axis", ["token", "position", "sample"])
    def test_is_unit_exponential_along_each_axis(self, axis: str) -> None:
        one = keys(1)
        along = {
            "token": lambda: exponential_noise(one, 0, 4000)[0],
            "position": lambda: torch.cat([exponential_noise(one, position, 1)[0] for position in range(4000)]),
            "sample": lambda: exponential_noise(keys(4000), 0, 1)[:, 0],
        }[axis]()
        assert stats.kstest(along.numpy(), "expon").pvalue > P_VALUE
        lag_one = torch.corrcoef(torch.stack([along[:-1], along[1:]]))[0, 1]
        assert abs(lag_one) < 4 / math.sqrt(len(along))

    @pytest.mark.parametrize("neighbour", ["token", "position", "key"])
    def test_neighbours_are_uncorrelated(self, neighbour: str) -> None:
        """Also for keys that follow each other, which hashes never do."""
        count = 4000
        these = torch.arange(count)
        left = exponential_noise(these, 5, 9)[:, 4]
        right = {
            "token": lambda: exponential_noise(these, 5, 9)[:, 5],
            "position": lambda: exponential_noise(these, 6, 9)[:, 4],
            "key": lambda: exponential_noise(these + 1, 5, 9)[:, 4],
        }[neighbour]()
        assert abs(torch.corrcoef(torch.stack([left, right]))[0, 1]) < 4 / math.sqrt(count)

    def test_small_draws_are_not_quantised(self) -> None:
        """The smallest draws win, so they need more resolution than float32 has next to 1."""
        smallest = exponential_noise(keys(2000), 0, 1000).flatten().sort().values[:50]
        assert len(set(smallest.tolist())) == 50
        assert smallest[0] > 0

    @given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 200))
    def test_depends_on_its_own_key_only(self, rows: list[int], position: int) -> None:
        every = keys(31)
        alone = torch.cat([exponential_noise(every[row : row + 1], position, 7) for row in rows])
        assert torch.equal(exponential_noise(every[rows], position, 7), alone)

    def test_a_larger_vocabulary_keeps_the_noise_of_a_smaller_one(self) -> None:
        assert torch.equal(exponential_noise(keys(3), 1, 50)[:, :20], exponential_noise(keys(3), 1, 20))

    def test_is_finite_where_the_uniform_rounds_to_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An infinite draw would make a token of probability 1 lose to the others."""
        monkeypatch.setattr("harness.engines.torch.decoding._mix", lambda bits: torch.full_like(bits, -1))
        noise = exponential_noise(keys(1), 0, 3)
        assert torch.isfinite(noise).all()
        tokens, _ = draw(torch.tensor([[0.0, 0.0, 1.0]]), keys(1), 0)
        assert tokens.item() == 2

    def test_position_may_be_a_tensor(self) -> None:
        for position in (0, 7):
            expected = exponential_noise(keys(5), position, 11)
            assert torch.equal(exponential_noise(keys(5), torch.tensor([position]), 11), expected)

    @pytest.mark.parametrize("elements", [1, 22, 50])
    def test_is_the_same_made_in_parts(self, monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
        """Parts of one row, of two, and of four with one left over."""
        expected = exponential_noise(keys(5), 3, 11)
        monkeypatch.setattr(decoding, "CACHED_ELEMENTS", elements)
        assert torch.equal(exponential_noise(keys(5), 3, 11), expected)


class TestDraw:
    def test_frequencies_match_probabilities(self) -> None:
        probabilities = torch.tensor([0.5, 0.25, 0.15, 0.08, 0.02])
        count = 20_000
        tokens, _ = draw(probabilities.expand(count, -1), keys(count), position=4)
        assert (
            stats.chisquare(
                tokens.bincount(minlength=5), probabilities.double() / probabilities.double().sum() * count
            ).pvalue
            > P_VALUE
        )

    def test_frequencies_match_along_positions(self) -> None:
        probabilities = torch.tensor([0.6, 0.3, 0.1])
        few = keys(8)
        tokens = torch.cat([draw(probabilities.expand(8, -1), few, position)[0] for position in range(1000)])
        assert (
            stats.chisquare(
                tokens.bincount(minlength=3), probabilities.double() / probabilities.double().sum() * 8000
            ).pvalue
            > P_VALUE
        )

    def test_excluded_tokens_are_never_drawn(self) -> None:
        tokens, _ = draw(torch.tensor([[0.0, 0.5, 0.0, 0.5]]).expand(2000, -1), keys(2000), 0)
        assert set(tokens.tolist()) == {1, 3}

    def test_rows_agree_with_rows_alone(self) -> None:
        probabilities = torch.softmax(torch.randn(40, 30, generator=torch.Generator().manual_seed(0)), -1)
        alone = torch.cat([draw(probabilities[row : row + 1], keys(40)[row : row + 1], 2)[0] for row in range(40)])
        assert torch.equal(draw(probabilities, keys(40), 2)[0], alone)


class TestSample:
    @pytest.mark.parametrize(
        ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.6, 1.0, 30), (1.5, 0.8, 0), (0.9, 0.9, 7), (0.0, 0.5, 3)]
    )
    def test_is_a_draw_from_the_sampling_distribution(self, temperature: float, top_p: float, top_k: int) -> None:
        """By the rule argmax(log p + Gumbel noise), the Gumbel noise being -log of the exponential one."""
        logits = torch.randn(300, 30, generator=torch.Generator().manual_seed(0)) * 2
        original = logits.clone()
        tokens, logps = sample(logits, keys(300), 6, temperature, top_p, top_k)
        distribution = sampling_logps(logits, temperature, top_p, top_k)
        assert torch.equal(tokens, (distribution - exponential_noise(keys(300), 6, 30).log()).argmax(1))
        torch.testing.assert_close(logps, distribution.gather(1, tokens[:, None])[:, 0], atol=1e-6, rtol=0)
        assert (logps.dtype, tokens.dtype) == (torch.float32, torch.int64)
        assert torch.equal(logits, original)

    def test_log_probs_are_float32_of_low_precision_logits(self) -> None:
        logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)).bfloat16()
        tokens, logps = sample(logits, keys(50), 0, 1.0)
        expected_tokens, expected_logps = sample(logits.float(), keys(50), 0, 1.0)
        assert torch.equal(tokens, expected_tokens)
        assert torch.equal(logps, expected_logps)


LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=12)


class TestSamplingLogps:
    @given(
        LOGITS,
        st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
        st.floats(0.01, 1.0),
        st.integers(0, 15),
    )
    def test_is_a_distribution(self, logits: list[float], temperature: float, top_p: float, top_k: int) -> None:
        logps = sampling_logps(torch.tensor([logits]), temperature, top_p, top_k)
        assert logps.exp().sum().item() == pytest.approx(1, abs=1e-5)
        assert logps.dtype == torch.float32

    @given(LOGITS, st.sampled_from([0.3, 1.0, 2.0]))
    def test_temperature_divides_logits(self, logits: list[float], temperature: float) -> None:
        weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
        expected = [math.log(weight / math.fsum(weights)) for weight in weights]
        assert sampling_logps(torch.tensor([logits]), temperature)[0].tolist() == pytest.approx(expected, abs=1e-5)

    def test_temperature_zero_is_greedy(self) -> None:
        logps = sampling_logps(torch.tensor([[1.0, 3.0, 2.0], [5.0, 1.0, 5.0]]), 0, top_p=0.3, top_k=2)
        assert logps.exp().tolist() == [[0, 1, 0], [1, 0, 0]]

    @pytest.mark.parametrize(("top_k", "kept"), [(0, 5), (1, 1), (2, 3), (3, 3), (4, 4), (5, 5), (9, 5)])
    def test_top_k_keeps_the_likeliest_and_ties_with_the_last(self, top_k: int, kept: int) -> None:
        logits = torch.tensor([[3.0, 2.0, 2.0, 1.0, 0.0]])
        assert torch.isfinite(sampling_logps(logits, 1.0, top_k=top_k)).sum().item() == kept

    @given(LOGITS, st.floats(0.01, 0.99))
    def test_top_p_keeps_the_smallest_set_that_holds_the_mass(self, logits: list[float], top_p: float) -> None:
        full = sampling_logps(torch.tensor([logits]), 1.0)[0].exp().double()
        kept = torch.isfinite(sampling_logps(torch.tensor([logits]), 1.0, top_p)[0])
        assert kept.any()
        assert full[kept].min() >= full[~kept].max() if (~kept).any() else True
        mass, least = float(full[kept].sum()), float(full[kept].min())
        assert mass >= top_p - 1e-6
        assert mass - least < top_p + 1e-6

    def test_top_p_renormalises(self) -> None:
        logps = sampling_logps(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 1.0, top_p=0.7)
        torch.testing.assert_close(logps.exp(), torch.tensor([[0.625, 0.375, 0.0, 0.0]]))

    def test_top_p_is_of_what_top_k_keeps(self) -> None:
        """Of .5 .3 .15 .05 the two likeliest are .625 .375; .6 of that is one token."""
        logps = sampling_logps(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 1.0, top_p=0.6, top_k=2)
        assert torch.isfinite(logps).tolist() == [[True, False, False, False]]

    def test_rows_are_independent(self) -> None:
        logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
        alone = torch.cat([sampling_logps(row[None], 0.7, 0.8, 5) for row in logits])
        torch.testing.assert_close(sampling_logps(logits, 0.7, 0.8, 5), alone)
