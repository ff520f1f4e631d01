"""The contract of an engine, for each that there is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from harness.models.language_model import LanguageModel
from harness.rollouts.engine import Completions, Engine, PromptTooLongError, SamplingParams
from harness.rollouts.keys import random_key
from harness.training.sequences import Sequences, score_completions

PROBLEMS = ["3+5+9=", "1+2+3+4+5=", "9+9+9+9+9+9+9=", "2+7+1=", "4+4+8+1=", "6+1+6+1+6+1="]
SAMPLES = 4
PARAMS = SamplingParams(max_completion_tokens=40)


@pytest.fixture(scope="module")
def prompts(language_model: LanguageModel) -> list[list[int]]:
    return [language_model.encode(problem) for problem in PROBLEMS]


def keys(prompts: int = len(PROBLEMS), samples: int = SAMPLES) -> Tensor:
    return torch.tensor(
        [[random_key(0, "rollout", 1, row, sample) for sample in range(samples)] for row in range(prompts)]
    )


def rows_of(completions: Completions) -> list[list[int]]:
    return [row[:length] for row, length in zip(completions.tokens.tolist(), completions.lengths.tolist(), strict=True)]


def repeated(prompts: Sequence[Sequence[int]], samples: int = SAMPLES) -> list[Sequence[int]]:
    return [prompt for prompt in prompts for _ in range(samples)]


def test_shapes_and_padding(engine: Engine, language_model: LanguageModel, prompts: list[list[int]]) -> None:
    drawn = engine.generate(prompts, keys(), PARAMS)
    count, longest = drawn.tokens.shape
    assert count == len(prompts) * SAMPLES
    assert longest == drawn.lengths.max()
    assert (drawn.tokens.dtype, drawn.lengths.dtype) == (torch.int64, torch.int64)
    assert (drawn.logps.dtype, drawn.truncated.dtype) == (torch.float32, torch.bool)
    padding = torch.arange(longest) >= drawn.lengths[:, None]
    assert padding.any()
    assert (drawn.tokens[padding] == language_model.pad_token_id).all()
    assert (drawn.logps[padding] == 0).all()
    assert (drawn.logps[~padding] < 0).any()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_trainer(
    engine: Engine, language_model: LanguageModel, prompts: list[list[int]], temperature: float
) -> None:
    drawn = engine.generate(prompts, keys(), SamplingParams(40, temperature))
    sequences = Sequences(repeated(prompts), drawn.tokens, drawn.lengths)
    with torch.inference_mode():
        trained, _ = score_completions(
            language_model.model, sequences, torch.arange(len(drawn.lengths)), temperature, language_model.pad_token_id
        )
    torch.testing.assert_close(drawn.logps, trained, atol=1e-5, rtol=0)


def test_greedy_is_that_of_transformers(
    engine: Engine, language_model: LanguageModel, prompts: list[list[int]]
) -> None:
    drawn = engine.generate(prompts, keys(samples=1), SamplingParams(24, temperature=0))
    for prompt, completion in zip(prompts, rows_of(drawn), strict=True):
        ids = torch.tensor([prompt])
        expected = language_model.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24
        )
        assert completion == expected[0, len(prompt) :].tolist()
    assert (drawn.logps == 0).all()


def test_a_key_gives_the_same_tokens_whatever_else_is_in_the_batch(engine: Engine, prompts: list[list[int]]) -> None:
    together = rows_of(engine.generate(prompts, keys(), PARAMS))
    for row, prompt in enumerate(prompts):
        assert rows_of(engine.generate([prompt], keys()[row : row + 1], PARAMS)) == together[SAMPLES * row :][:SAMPLES]
    backwards = rows_of(engine.generate(prompts[::-1], keys().flip(0, 1), PARAMS))
    assert backwards[::-1] == together
    last_sample = rows_of(engine.generate(prompts, keys()[:, -1:], PARAMS))
    assert last_sample == together[SAMPLES - 1 :: SAMPLES]


def test_samples_of_a_prompt_are_as_those_of_repeated_prompts(engine: Engine, prompts: list[list[int]]) -> None:
    samples = engine.generate(prompts, keys(), PARAMS)
    single = engine.generate(repeated(prompts), keys().reshape(-1, 1), PARAMS)
    assert rows_of(samples) == rows_of(single)
    torch.testing.assert_close(samples.logps, single.logps, atol=1e-5, rtol=0)
    assert torch.equal(samples.truncated, single.truncated)


def test_keys_are_what_varies_between_samples(engine: Engine, prompts: list[list[int]]) -> None:
    drawn = rows_of(engine.generate(prompts[:1], keys(1, 16), PARAMS))
    assert len({tuple(row) for row in drawn}) > 1
    twice = rows_of(engine.generate(prompts[:1], keys(1, 1).expand(1, 3), PARAMS))
    assert twice == [twice[0]] * 3


def test_completions_end_with_end_of_sequence_or_are_truncated(
    engine: Engine, language_model: LanguageModel, prompts: list[list[int]]
) -> None:
    drawn = engine.generate(prompts, keys(), SamplingParams(12))
    ends = [row[-1] in language_model.eos_token_ids for row in rows_of(drawn)]
    assert True in ends and False in ends, "both kinds must occur for this test to say anything"
    assert drawn.truncated.tolist() == [not end for end in ends]
    assert all(len(row) == 12 for row, end in zip(rows_of(drawn), ends, strict=True) if not end)
    assert not any(token in language_model.eos_token_ids for row in rows_of(drawn) for token in row[:-1])


def test_a_shorter_limit_cuts_the_same_completions(engine: Engine, prompts: list[list[int]]) -> None:
    long, short = (rows_of(engine.generate(prompts, keys(), SamplingParams(limit))) for limit in (40, 7))
    assert short == [row[:7] for row in long]


def test_end_of_sequence_on_the_last_token_is_not_truncation(engine: Engine, prompts: list[list[int]]) -> None:
    free = engine.generate(prompts[:1], keys(1, 1), PARAMS)
    assert not free.truncated.item()
    length = int(free.lengths.item())
    assert not engine.generate(prompts[:1], keys(1, 1), SamplingParams(length)).truncated.item()
    assert engine.generate(prompts[:1], keys(1, 1), SamplingParams(length - 1)).truncated.item()


def test_one_token(engine: Engine, prompts: list[list[int]]) -> None:
    drawn = engine.generate(prompts, keys(), SamplingParams(1))
    assert drawn.tokens.shape == (len(prompts) * SAMPLES, 1)
    assert (drawn.lengths == 1).all()


@pytest.mark.parametrize("stop", [("#",), (",1",), ("wait", "#1")])
def test_stop_strings_end_a_completion(
    engine: Engine, language_model: LanguageModel, prompts: list[list[int]], stop: tuple[str, ...]
) -> None:
    """Keys decide the noise, so a stopped completion is the free one up to the first stop string."""
    free = rows_of(engine.generate(prompts, keys(), PARAMS))
    stopped = engine.generate(prompts, keys(), SamplingParams(40, stop=stop))
    cut = 0
    for row, got, truncated in zip(free, rows_of(stopped), stopped.truncated.tolist(), strict=True):
        ends = [end for end in range(1, len(row) + 1) if any(s in language_model.decode(row[:end]) for s in stop)]
        assert got == row[: ends[0] if ends else len(row)]
        if ends:
            cut += 1
            assert not truncated
    assert cut > 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(24, top_k=2),
        SamplingParams(24, top_p=0.6),
        SamplingParams(24, temperature=0.5, top_k=5, top_p=0.9),
    ],
)
def test_log_probs_are_of_the_truncated_distribution(
    engine: Engine, language_model: LanguageModel, prompts: list[list[int]], params: SamplingParams
) -> None:
    """Each token of a completion by a forward pass over all that stands before it."""
    from harness.rollouts.sampling import sampling_logps

    drawn = engine.generate(prompts[:2], keys(2, 2), params)
    for row, (prompt, tokens) in enumerate(zip(repeated(prompts[:2], 2), rows_of(drawn), strict=True)):
        with torch.inference_mode():
            logits = language_model.model(torch.tensor([[*prompt, *tokens]])).logits[0]
        logps = sampling_logps(logits, params.temperature, params.top_p, params.top_k)
        expected = [logps[len(prompt) - 1 + t, token].item() for t, token in enumerate(tokens)]
        assert drawn.logps[row, : len(tokens)].tolist() == pytest.approx(expected, abs=1e-5)


def test_prompts_that_do_not_fit(engine: Engine, prompts: list[list[int]]) -> None:
    context = 128
    with pytest.raises(PromptTooLongError, match="no tokens"):
        engine.generate([prompts[0], []], keys(2), PARAMS)
    with pytest.raises(PromptTooLongError, match=r"89 tokens and max_completion_tokens=40 .* 128"):
        engine.generate([prompts[0], prompts[0][:1] * (context - 39)], keys(2), PARAMS)
    fits = engine.generate([prompts[0][:1] * (context - 40)], keys(1, 1), PARAMS)
    assert fits.lengths.item() >= 1


def test_no_prompts(engine: Engine) -> None:
    with pytest.raises(ValueError, match="no prompts"):
        engine.generate([], torch.zeros((0, 2), dtype=torch.int64), PARAMS)
