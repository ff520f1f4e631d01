"""The interface of engines, checks that they share, and the rule by which stop strings end a completion.

The stop rule is the same for all engines. `make_engine` creates the engine that a spec names. If a cell runs in several
processes, they share its engine.

Shapes: P prompts, n samples per prompt, N = P * n rows, T tokens of the longest completion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from evals.sampler import SamplingParams as SamplingParams  # noqa: PLC0414 - a part of the interface
from harness.config.engine import ENGINES, engine_on
from harness.config.rollout import RolloutSpec
from harness.errors import BenchError, RefusedError
from harness.processes import Processes, by_all

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from harness.models.language_model import LanguageModel
    from harness.models.lora import MergedWeights
    from harness.models.precision import RoundedWeights


@dataclass(frozen=True)
class GenerationCost:
    """The cost of a call of `generate`: wall-clock time per phase, and the batch's occupancy."""

    sync_s: float = 0.0
    """Time to bring the engine's weights up to date."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    slots: int = 0
    """Number of rows computed, summed over all decoding passes."""
    occupied: int = 0
    """Number of these rows that produced a token of a completion."""

    def __add__(self, other: GenerationCost) -> GenerationCost:
        return GenerationCost(
            self.sync_s + other.sync_s,
            self.prefill_s + other.prefill_s,
            self.decode_s + other.decode_s,
            self.slots + other.slots,
            self.occupied + other.occupied,
        )


@dataclass(frozen=True)
class Completions:
    """N completions, right-padded. The n samples of a prompt are adjacent."""

    tokens: Tensor
    """[N, T] int64 token ids, including the end-of-sequence token."""
    logps: Tensor
    """[N, T] float32 log-probs under the sampling distribution, 0 in padding."""
    lengths: Tensor
    """[N] int64 number of tokens."""
    truncated: Tensor
    """[N] bool: true if max_completion_tokens was reached."""
    cost: GenerationCost = GenerationCost()

    @classmethod
    def of(
        cls,
        tokens: Sequence[Sequence[int]],
        logps: Sequence[Sequence[float]],
        truncated: Sequence[bool],
        pad_token_id: int,
        cost: GenerationCost = GenerationCost(),
    ) -> Completions:
        """Build completions from rows of different lengths. No row may be empty."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        return cls(
            pad_sequence([torch.tensor(row) for row in tokens], batch_first=True, padding_value=pad_token_id),
            pad_sequence([torch.tensor(row) for row in logps], batch_first=True),
            torch.tensor([len(row) for row in tokens]),
            torch.tensor(truncated),
            cost,
        )

    @classmethod
    def joined(cls, parts: Sequence[Completions]) -> Completions:
        """Concatenate, in this order, the completions that several processes sampled in parallel."""
        import torch
        from torch.nn.functional import pad

        longest = max(part.tokens.shape[1] for part in parts)

        def cat(tensors: list[Tensor]) -> Tensor:
            return torch.cat([pad(one, (0, longest - one.shape[1])) for one in tensors])

        costs = [part.cost for part in parts]
        return cls(
            cat([part.tokens for part in parts]),
            cat([part.logps for part in parts]),
            torch.cat([part.lengths for part in parts]),
            torch.cat([part.truncated for part in parts]),
            GenerationCost(
                # The processes ran in parallel, so the times are maxima, while slots add up.
                max(cost.sync_s for cost in costs),
                max(cost.prefill_s for cost in costs),
                max(cost.decode_s for cost in costs),
                sum(cost.slots for cost in costs),
                sum(cost.occupied for cost in costs),
            ),
        )

    def rows(self, chosen: Tensor) -> Completions:
        """Return the chosen rows (int64 indices), in that order."""
        return Completions(
            self.tokens[chosen], self.logps[chosen], self.lengths[chosen], self.truncated[chosen], self.cost
        )


OnFinished = Callable[[int, list[int], bool], None]
"""on_finished(row, tokens, truncated) is called once for each finished sample."""


class EngineMismatchError(BenchError):
    """Engine and trainer compute different log-probs from the same weights, so the cell's samples are invalid."""


class Engine(Protocol):
    """Samples completions from the weights that a model has when `generate` is called."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        """Sample n completions for each of the P prompts.

        prompts: token ids.
        keys [P, n] int64: each sample's noise depends only on its key, whatever else is in the batch. The batch can
        change a token only through floating-point rounding.
        on_finished: called once for each sample, when it ends (vLLM) or leaves the batch (torch).
        Raises PromptTooLongError if a prompt is empty, or if it and max_completion_tokens exceed the model's context.
        Raises ValueError if there are no prompts or max_completion_tokens is below 1.
        Raises EngineMismatchError if the engine has a copy of the weights whose log-probs differ from the model's.
        """


def require_steady_positions(model: PreTrainedModel) -> None:
    """Raise RefusedError if the model's rotary embeddings have the type `dynamic`.

    Their frequencies depend on the longest sequence that the model has seen. So a sample would depend on the rest of
    its batch and on earlier batches.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    # Models with several kinds of layers have a dict of parameters for each kind.
    of_kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    if any(one.get("rope_type") == "dynamic" for one in of_kinds):
        raise RefusedError("engines.rope_frequencies_not_steady", model=type(model).__name__)


def ends_with_stop(tokens: list[int], stop: Sequence[str], decode: Callable[[list[int]], str]) -> bool:
    """Return whether the last token completes one of the stop strings.

    Call this after every token, because it only searches the last tokens.
    """
    if not stop:
        return False
    # A token inside a stop string contributes at least one byte of it, or no text. Allow for eight tokens without text.
    tail_tokens = max(len(text.encode()) for text in stop) + 8
    tail = decode(tokens[-tail_tokens:])
    return any(text in tail for text in stop)


def make_engine(rollout: RolloutSpec, language_model: LanguageModel, sampler: PreTrainedModel | None = None) -> Engine:
    """Create the spec's engine for the language model.

    sampler: the model to sample from, which must use the language model's tokens. Default: `language_model.model`.
    Raises RefusedError if the engine is not installed, cannot run here, or does not support the spec's sampling.
    """
    from harness.models.lora import has_adapters, merged_copy

    model = language_model.model if sampler is None else sampler
    if has_adapters(model):
        merged = merged_copy(model)
        engine: Engine = RefreshedEngine(merged, _in_its_dtype(rollout, language_model, merged.model))
    else:
        engine = _in_its_dtype(rollout, language_model, model)
    return engine if Processes.here().size == 1 else SharedEngine(engine)


def _in_its_dtype(rollout: RolloutSpec, language_model: LanguageModel, model: PreTrainedModel) -> Engine:
    """Create the engine for the model, or for a copy of it if `rollout.dtype` is another dtype."""
    from harness.models.precision import DTYPES, RoundedWeights

    if rollout.dtype == "trainer" or DTYPES[rollout.dtype] == model.dtype:
        return _engine_of(rollout, language_model, model)
    rounded = RoundedWeights(model, DTYPES[rollout.dtype])
    return RefreshedEngine(rounded, _engine_of(rollout, language_model, rounded.model))


def _engine_of(rollout: RolloutSpec, language_model: LanguageModel, model: PreTrainedModel) -> Engine:
    backend = ENGINES.find(engine_on(str(model.device), rollout.engine))
    if model.device.type not in backend.devices:
        raise RefusedError(
            "engines.engine_not_on_device",
            engine=backend.name,
            devices=" and ".join(backend.devices),
            device=model.device,
        )
    if refusal := backend.refusal(rollout, str(model.device)):
        raise RefusedError(refusal)
    engine: Engine = backend.make(language_model, model, rollout)
    return engine


class SharedEngine:
    """An `Engine` that splits the prompts among a cell's processes, each of which has an engine of its own.

    A sample's noise depends on its key, so the process that samples it only affects rounding.
    """

    def __init__(self, engine: Engine) -> None:
        """Wrap this process's engine. All processes must have the same weights."""
        self._engine = engine
        Processes.here().share(self)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        """Sample like `Engine.generate`, but call on_finished only when all samples are complete."""
        drawn = self._draw(prompts, keys, params)
        if on_finished is not None:
            ends = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), drawn.truncated.tolist(), strict=True)
            for row, (tokens, length, truncated) in enumerate(ends):
                on_finished(row, tokens[:length], truncated)
        return drawn

    @by_all
    def _draw(self, prompts: Sequence[Sequence[int]], keys: Tensor, params: SamplingParams) -> Completions:
        processes = Processes.here()
        first, end = (len(prompts) * rank // processes.size for rank in (processes.rank, processes.rank + 1))

        def own() -> Completions | None:
            # A process without prompts samples nothing. If there are no prompts at all, the engine raises the error.
            if first == end and prompts:
                return None
            return self._engine.generate(prompts[first:end], keys[first:end], params)

        return Completions.joined([part for part in processes.interruptible(own) if part is not None])


class RefreshedEngine:
    """An `Engine` for a copy of a model, which is refreshed from the model before each call.

    The copy has merged adapters or another dtype.
    """

    def __init__(self, weights: MergedWeights | RoundedWeights, engine: Engine) -> None:
        """Wrap an engine for `weights.model`."""
        self._weights, self._engine = weights, engine

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        import torch

        started_s = time.perf_counter()
        self._weights.refresh()
        # On CUDA the refresh is asynchronous. Without this wait, its time would be counted as decoding.
        if self._weights.model.device.type == "cuda":
            torch.cuda.synchronize(self._weights.model.device)
        refreshed = GenerationCost(sync_s=time.perf_counter() - started_s)
        drawn = self._engine.generate(prompts, keys, params, on_finished)
        return replace(drawn, cost=refreshed + drawn.cost)
