"""One way of drawing completions, in a process of its own, taking turns: an engine of ours or HF's `generate`.

python benchmarks/rollout_contestant.py ENGINE MODEL DEVICE NEW_TOKENS SAMPLES OPTIONS

ENGINE: torch, vllm or generate. OPTIONS: JSON, of `generate`.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pairs import Turns
from roofline_formulas import Shape

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel

OPENINGS = (
    "The keeper of the lighthouse had not seen a ship for",
    "Nobody in the village remembered who had built the bridge, but",
    "When the last train left the station, the old engineer",
    "The garden behind the library was closed in winter, so",
    "Every morning before sunrise the baker's daughter",
    "The map that they had found in the attic showed",
    "It had been raining for three weeks when the river",
    "The clockmaker promised that the great clock would",
)
PARAGRAPH = (
    "Write the next chapter of a long story for patient readers. It is told slowly, by somebody who was there, and it "
    "describes the weather, the houses, the people and what they say to one another. Nothing in it ends quickly: every "
    "scene leads to another one, and the chapter goes on for many pages without a break. Keep the names that were used "
    "before, do not explain what the story means, and do not address the reader.\n\n"
)
"""With an opening about 100 tokens, after which completions seldom end early."""


def prompts() -> list[str]:
    return [PARAGRAPH + opening for opening in OPENINGS]


def main(engine: str, model: str, device: str, new_tokens: int, samples: int, options: dict[str, Any]) -> None:
    turns = Turns()

    from harness.models.language_model import load_model

    language_model = load_model(model, device)
    facts = {
        "shape": vars(Shape.of(language_model.model.config, weight_bytes=2 if device.startswith("cuda") else 4)),
        "prompt_tokens": fmean(len(language_model.encode(prompt)) for prompt in prompts()),
    }
    if engine == "generate":
        draw = make_generate(language_model, new_tokens, samples, options)
    else:
        draw = make_engine(engine, language_model, new_tokens, samples)
    # The first is the warm-up: it is over before the first turn.
    for turn in itertools.count():
        started_s = time.perf_counter()
        tokens = draw(turn)
        turn_s = time.perf_counter() - started_s
        turns.report({"seconds": turn_s / tokens, "tokens": tokens, "turn_s": turn_s, **facts})


def make_engine(engine: str, language_model: LanguageModel, new_tokens: int, samples: int) -> Callable[[int], int]:
    """turn -> how many tokens were drawn."""
    import torch

    from harness.config.rollout import RolloutSpec
    from harness.engines import base
    from harness.engines.base import SamplingParams
    from harness.random_keys import random_key

    encoded = [language_model.encode(prompt) for prompt in prompts()]
    rollout = RolloutSpec.model_validate({"engine": engine, "max_completion_tokens": new_tokens})
    drawn_by = base.make_engine(rollout, language_model)

    def draw(turn: int) -> int:
        keys = [
            [random_key(0, "rollout", turn, place, sample) for sample in range(samples)]
            for place in range(len(encoded))
        ]
        completions = drawn_by.generate(encoded, torch.tensor(keys), SamplingParams(new_tokens))
        return int(completions.lengths.sum())

    return draw


def make_generate(
    language_model: LanguageModel, new_tokens: int, samples: int, options: dict[str, Any]
) -> Callable[[int], int]:
    """As `make_engine`. The options may hold `attn_implementation`; the others are of `generate` itself."""
    import torch

    options = dict(options)
    language_model.model.set_attn_implementation(options.pop("attn_implementation", "sdpa"))
    tokenizer, pad = language_model.tokenizer, language_model.pad_token_id
    tokenizer.padding_side, tokenizer.pad_token_id = "left", pad
    batch = tokenizer(prompts(), return_tensors="pt", padding=True).to(language_model.model.device)
    ends = torch.tensor(language_model.eos_token_ids, device=language_model.model.device)

    def draw(turn: int) -> int:
        torch.manual_seed(turn)
        sequences = language_model.model.generate(
            **batch,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new_tokens,
            num_return_sequences=samples,
            eos_token_id=language_model.eos_token_ids,
            pad_token_id=pad,
            **options,
        )
        ended = torch.isin(sequences[:, batch["input_ids"].shape[1] :], ends).long()
        # A completion's tokens are those before its end, and the end itself.
        return int((ended.cumsum(1) - ended == 0).sum())

    return draw


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0], given[1], given[2], int(given[3]), int(given[4]), json.loads(given[5]))
