"""The stage that prepares a fixed set of preference pairs: tokens, and log-probs under the starting weights.

It runs once for all cells that start from the same weights. A completion consists of its text's tokens and an
end-of-sequence token. The rules for what is too long are as follows; `PairCounts` counts how often each was applied:

* A prompt that fills the model's context, or a pairs.max_tokens beyond that context, is refused.
* A pair whose prompt leaves no room under pairs.max_tokens is dropped.
* If a side (prompt and completion) exceeds pairs.max_tokens, pairs.too_long=drop drops the pair.
  pairs.too_long=truncate truncates the side, which then has no end-of-sequence token.
* Pairs with the same tokens on both sides after truncation are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from evals.pairs import PreferencePair, parse_pair_source
from harness.config.hashing import pairs_hash
from harness.config.rollout import DatasetPairs
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.run.stages import Stage, StageContext

if TYPE_CHECKING:
    from torch import Tensor

    from harness.models.language_model import LanguageModel
    from harness.run.encoded_pairs import EncodedPairs

CHUNK_PAIRS = 32
"""The number of pairs scored together. Only their log-probs are held in padded form at the same time."""


def _make(path: Path, context: StageContext) -> None:
    """Write the encoded pairs, with log-probs under the starting weights if the objective needs them.

    Raises EvalError if pairs cannot be loaded or are faulty. Raises RefusedError as `encode_pairs`, and if there are
    fewer pairs than a step needs.
    """
    from harness.run.encoded_pairs import save_pairs

    spec, start = context.spec, context.start
    assert isinstance(spec.pairs, DatasetPairs)
    source = parse_pair_source(spec.pairs.data, spec.pairs.split)
    pairs = source.load()
    context.tell_progress(0, len(pairs))
    encoded = encode_pairs(pairs, spec.pairs, start)
    encoded.require(spec.pairs.pairs_per_step)
    if spec.preference.reference == "initial":
        encoded = _with_reference(encoded, spec, start, context.tell_progress)
    provenance = {
        "data": spec.pairs.data,
        "fingerprint": source.fingerprint,
        "model": spec.model.source,
        "temperature": spec.rollout.temperature,
    }
    save_pairs(path, encoded, provenance)


def encode_pairs(pairs: Sequence[PreferencePair], wanted: DatasetPairs, language_model: LanguageModel) -> EncodedPairs:
    """Encode pairs as tokens. Pairs that are too long are treated by the rules of this module.

    Raises RefusedError in these cases: a prompt fills the context or has no tokens, pairs.max_tokens exceeds the
    context, both sides of a pair have the same tokens, or no pair is left.
    """
    import torch

    from harness.run.encoded_pairs import EncodedPairs, PairCounts, Ragged

    context = language_model.context_tokens
    if context is not None and wanted.max_tokens > context:
        raise RefusedError("run.pair_tokens_exceed_context", max_tokens=wanted.max_tokens, context=context)
    fates: Counter[str] = Counter()
    kept: list[_Tokens] = []
    for pair in pairs:
        tokens = _encode(pair, language_model, context)
        shortened = tokens.cut(wanted.max_tokens)
        if len(tokens.prompt) >= wanted.max_tokens:
            fates["prompt_too_long"] += 1
        # `cut` returns the same object if nothing had to be truncated.
        elif shortened is tokens:
            kept.append(tokens)
        elif wanted.too_long == "drop":
            fates["side_too_long"] += 1
        elif torch.equal(shortened.chosen, shortened.rejected):
            fates["equal_after_truncation"] += 1
        else:
            fates["truncated"] += 1
            kept.append(shortened)
    counts = PairCounts(
        rows=len(pairs),
        kept=len(kept),
        prompt_too_long=fates["prompt_too_long"],
        side_too_long=fates["side_too_long"],
        equal_after_truncation=fates["equal_after_truncation"],
        truncated=fates["truncated"],
    )
    if not kept:
        raise RefusedError(
            "run.no_pair_left",
            data=wanted.data,
            n_pairs=len(pairs),
            max_tokens=wanted.max_tokens,
            too_long=wanted.too_long,
            dropped=counts.dropped,
            otherwise=", or set pairs.too_long to truncate" if counts.side_too_long else "",
        )
    # Prompts are compared as tokens, because different texts may have the same tokens.
    groups: dict[tuple[int, ...], int] = {}
    return EncodedPairs(
        prompts=Ragged.of([tokens.prompt for tokens in kept]),
        chosen=Ragged.of([tokens.chosen for tokens in kept]),
        rejected=Ragged.of([tokens.rejected for tokens in kept]),
        groups=torch.tensor([groups.setdefault(tuple(tokens.prompt.tolist()), len(groups)) for tokens in kept]),
        counts=counts,
    )


class _Tokens(NamedTuple):
    """Token ids of one pair, int32."""

    prompt: Tensor
    chosen: Tensor
    rejected: Tensor

    def cut(self, max_tokens: int) -> _Tokens:
        """Return the pair with both sides truncated to the limit, or the same object if both fit."""
        room = max(0, max_tokens - len(self.prompt))
        if max(len(self.chosen), len(self.rejected)) <= room:
            return self
        return _Tokens(self.prompt, self.chosen[:room], self.rejected[:room])


def _encode(pair: PreferencePair, language_model: LanguageModel, context: int | None) -> _Tokens:
    import torch

    prompt = language_model.encode(pair.prompt)
    if context is not None and len(prompt) >= context:
        raise RefusedError(
            "run.pair_prompt_exceeds_context", where=pair.where, prompt_tokens=len(prompt), context_tokens=context
        )
    chosen, rejected = map(language_model.encode_completion, (pair.chosen, pair.rejected))
    if not prompt or chosen == rejected:
        what = "chosen and rejected are the same tokens" if prompt else "its prompt has no tokens"
        raise RefusedError("run.pair_not_encodable", where=pair.where, fault=what)
    return _Tokens(*(torch.tensor(tokens, dtype=torch.int32) for tokens in (prompt, chosen, rejected)))


def _with_reference(
    encoded: EncodedPairs, spec: RunSpec, start: LanguageModel, on_progress: Callable[[int, int], None]
) -> EncodedPairs:
    """Add reference log-probs, computed as in a training step: in micro-batches, at the temperature of the rollouts."""
    import torch

    from harness.run.encoded_pairs import Ragged
    from harness.training.sequences import SequenceScorer

    scorer = SequenceScorer(start.model, None, spec, start.pad_token_id)
    chosen: list[Tensor] = []
    rejected: list[Tensor] = []
    for first in range(0, len(encoded), CHUNK_PAIRS):
        batch = encoded.batch(range(first, min(first + CHUNK_PAIRS, len(encoded))))
        logps, mask = scorer.logps_of(start.model, batch.sequences), batch.sequences.mask
        # The rows are all chosen sides, then all rejected sides. The mask removes the padding.
        chosen.append(logps[: len(batch)][mask[: len(batch)]])
        rejected.append(logps[len(batch) :][mask[len(batch) :]])
        on_progress(first + len(batch), len(encoded))
    return replace(
        encoded,
        ref_chosen_logps=Ragged(torch.cat(chosen), encoded.chosen.lengths),
        ref_rejected_logps=Ragged(torch.cat(rejected), encoded.rejected.lengths),
    )


def _remark(path: Path) -> str:
    from harness.run.encoded_pairs import load_pairs

    counts = load_pairs(path).counts
    cut = f"; {counts.truncated} of these have a side cut at pairs.max_tokens" if counts.truncated else ""
    return f"pairs: {counts.kept} of {counts.rows} are kept{cut}; {counts.dropped}"


def _require(spec: RunSpec, path: Path) -> None:
    from harness.run.encoded_pairs import load_pairs

    if isinstance(spec.pairs, DatasetPairs):
        load_pairs(path).require(spec.pairs.pairs_per_step)


PAIRS = Stage(
    "pairs",
    "preparing pairs",
    needed=lambda spec: spec.pairs.type == "dataset",
    key=lambda spec: f"pairs-{pairs_hash(spec)[:16]}.safetensors",
    make=_make,
    remark=_remark,
    require=_require,
)
