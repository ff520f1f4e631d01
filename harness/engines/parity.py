"""The parity probe: after every sync, an engine's copy of the weights must give the model's log-probs.

It finds weights that are missing, misplaced or stale. It cannot find differences below rounding, such as one small step
in bfloat16. `weight_version` tells when a sync is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.engines.base import EngineMismatchError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

BOUNDS = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.25}
"""The largest mean difference of log-probs that is accepted as rounding, by dtype.

float32: correct engines differ by about 1e-5. bfloat16 has 8 significant bits, so logits between 16 and 32 lie 0.125
apart. Another order of rounding moves most logits by a fraction of that, and some by two or three such steps
(SmolLM2-135M: 0.07 on average, 0.37 at most). float16 has 11 significant bits, so its steps are an eighth as large.
"""
LENGTHS_TOKENS = (2, 17, 48)
"""Lengths of the probe sequences."""


def probe_sequences(model: PreTrainedModel) -> list[list[int]]:
    """Return fixed pseudo-random token sequences for this vocabulary. The context has room for one more token."""
    import torch

    longest = (getattr(model.config, "max_position_embeddings", None) or max(LENGTHS_TOKENS) + 1) - 1
    generator = torch.Generator().manual_seed(0)
    vocab = model.get_input_embeddings().num_embeddings
    return [torch.randint(vocab, (min(length, longest),), generator=generator).tolist() for length in LENGTHS_TOKENS]


def require_parity(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], engine_logps: Sequence[Sequence[float]], engine: str
) -> float:
    """Return the mean absolute difference between the engine's and the model's log-probs.

    engine_logps: the engine's log-prob of each token but the first, for each sequence.
    engine: the engine's name, for messages.
    Raises EngineMismatchError if the difference is NaN or exceeds the bound for the model's dtype.
    """
    import torch

    differences = [
        (torch.tensor(logps) - _model_logps(model, sequence)).abs()
        for sequence, logps in zip(sequences, engine_logps, strict=True)
    ]
    difference = torch.cat(differences).mean().item()
    bound = BOUNDS[str(model.dtype).removeprefix("torch.")]
    # `not <=` instead of `>`, so that NaN counts as a mismatch.
    if not difference <= bound:
        raise EngineMismatchError(
            "engines.log_probs_differ_after_sync", engine=engine, difference=difference, dtype=model.dtype, bound=bound
        )
    return difference


def _model_logps(model: PreTrainedModel, sequence: Sequence[int]) -> Tensor:
    """Return the model's log-probs [len(sequence) - 1] at temperature 1, in float32 on the CPU."""
    import torch

    ids = torch.tensor([list(sequence)], device=model.device)
    with torch.inference_mode():
        logps: Tensor = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
    return logps.gather(1, ids[0, 1:, None])[:, 0].cpu()
