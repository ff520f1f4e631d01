"""A sampler that remembers: nothing is drawn twice, whatever drew it and wherever it was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.sampler import Draw, SamplingParams
from harness.errors import RefusedError
from harness.run.provenance import append_start
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import RememberingSampler
from tests.harness.evaluate.test_evaluation import Counting, Killed
from tests.refusals import refuses

DECODING = SamplingParams(12)
DRAWS = [Draw(f"{number}+1=", f"p{number}", sample) for number in range(3) for sample in range(2)]
ASKED = {"model": "tiny", "seed": 0}


def opened(folder: Path, counting: Counting, told: list[tuple[int, int, str]] | None = None):
    said = told if told is not None else []
    return RememberingSampler.opened(
        folder,
        ASKED,
        lambda: counting,  # type: ignore[arg-type, return-value]
        append_start,
        lambda *words: said.append(words),
    )


@pytest.mark.parametrize("dies_after", [0, 1, 4])
def test_a_killed_drawing_goes_on_with_what_is_missing(home: Path, sampler: EngineSampler, dies_after: int) -> None:
    unbroken = sampler.draw(DRAWS, DECODING)
    first = Counting(sampler, dies_after)
    with pytest.raises(Killed), opened(home, first) as remembering:
        remembering.draw(DRAWS, DECODING)
    with (home / "samples.jsonl").open("a") as file:
        file.write('{"key": "torn')
    second, told = Counting(sampler), []  # type: ignore[var-annotated]
    with opened(home, second, told) as remembering:
        assert remembering.draw(DRAWS, DECODING) == unbroken
    assert sorted(first.drawn + second.drawn) == sorted((draw.example, draw.sample) for draw in DRAWS)
    assert told[-1][:2] == (6 - dies_after, 6 - dies_after)
    with opened(home, Counting(sampler, dies_after=0)) as remembering:
        assert remembering.draw(DRAWS, DECODING) == unbroken


def test_other_prompts_decodings_and_samples_are_others(home: Path, sampler: EngineSampler) -> None:
    counting = Counting(sampler)
    first = DRAWS[0]
    with opened(home, counting) as remembering:
        remembering.draw([first], DECODING)
        for draw, decoding in (
            (Draw("2+2=", first.example, first.sample), DECODING),
            (Draw(first.prompt, "other", first.sample), DECODING),
            (Draw(first.prompt, first.example, 7), DECODING),
            (first, SamplingParams(11)),
            (first, SamplingParams(12, stop=("9",))),
        ):
            before = len(counting.drawn)
            remembering.draw([draw], decoding)
            assert len(counting.drawn) == before + 1


def test_completions_of_another_model_are_not_mixed_in(home: Path, sampler: EngineSampler) -> None:
    with opened(home, Counting(sampler)) as remembering:
        remembering.draw(DRAWS, DECODING)
    other = {"model": "other", "seed": 0}
    with (
        refuses(RefusedError, "sampling.samples_of_another_spec", differing="model"),
        RememberingSampler.opened(home, other, lambda: sampler, append_start, lambda *words: None),
    ):
        pass
