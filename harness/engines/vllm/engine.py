"""vLLM inside this process. This is the only file that imports vllm.

A process has at most one vLLM, which holds a copy of one model's weights. Before vLLM generates for a model whose
current weights it does not hold, the weights are written into it, and a parity probe compares log-probs
(`harness.engines.parity`). `sync_s` is the time of both. For a large model on a GPU, vLLM sleeps between calls of
`generate`: it frees the memory of its weights and cache, and when it wakes, the weights are written again. vLLM mixes
prefill and decoding in its batches, so `decode_s` is the time of both.

vLLM seeds and uses the process's random generators. On a CPU it also disables torch.set_num_threads. Both are restored
here. On a CPU, vLLM binds the process's memory to one NUMA node, which is not undone.

Noise: a sample's seed depends only on its key. So the same call gives the same tokens with the same version of vLLM on
the same hardware. The rest of the batch changes a sample's logits only by rounding, which occasionally changes a token.
VLLM_BATCH_INVARIANT=1 prevents that on the GPUs for which vLLM supports it. The noise differs from the torch engine's,
and between devices and versions of vLLM. On a CPU, vLLM uses only the lower 32 bits of a seed.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import random
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from harness.engines.base import (
    Completions,
    EngineMismatchError,
    GenerationCost,
    OnFinished,
    SamplingParams,
    ends_with_stop,
)
from harness.engines.parity import probe_sequences, require_parity
from harness.engines.vllm.limits import CPU_CACHE_BYTES, sleeps_between_calls, temperature_refusal
from harness.errors import RefusedError
from harness.models.language_model import require_answerable, weight_version
from harness.models.precision import Float32Head
from harness.processes import Processes

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from vllm import RequestOutput
    from vllm import SamplingParams as VllmParams

# vLLM reads these when it is imported. They make it run in this process, where weights are passed by reference and no
# threads are bound to cores. They also turn off its usage statistics.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmEngine:
    """An `Engine` for one model that uses this process's vLLM."""

    def __init__(
        self,
        model: PreTrainedModel,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        decode: Callable[[list[int]], str],
        memory_frac: float,
    ) -> None:
        """Start vLLM unless it is already running for this architecture.

        decode: maps token ids to text; called only if there are stop strings.
        memory_frac: fraction of the GPU's memory for vLLM.
        Raises RefusedError if vLLM is not installed or cannot run this model here.
        """
        self._model, self._memory_frac = model, memory_frac
        self._pad, self._eos, self._decode = pad_token_id, list(eos_token_ids), decode
        resident_engine(model, memory_frac)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        require_answerable(self._model, prompts, params.max_completion_tokens)
        if refusal := temperature_refusal(params.temperature):
            raise RefusedError(refusal)
        resident = resident_engine(self._model, self._memory_frac)
        started = time.perf_counter()
        resident.hold(self._model)
        synced = time.perf_counter()
        count = keys.shape[1]
        samples = [_Sample(prompts[row // count], key) for row, key in enumerate(keys.reshape(-1).tolist())]
        resident.complete(samples, params, self._eos, self._decode, on_finished)
        resident.rest()
        # vLLM does not report how full its batches are, so `slots` and `occupied` stay 0.
        cost = GenerationCost(sync_s=synced - started, decode_s=time.perf_counter() - synced)
        return Completions.of(
            [one.tokens for one in samples],
            # Greedy sampling draws from a point mass, so its log-prob is 0.
            [one.logps if params.temperature > 0 else [0.0] * len(one.tokens) for one in samples],
            [not one.stopped for one in samples],
            self._pad,
            cost,
        )


@dataclass
class _Sample:
    """One completion, as far as vLLM has sampled it."""

    prompt: Sequence[int]
    """The prompt's token ids."""
    key: int
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    stopped: bool = False
    """True if an end-of-sequence token or a stop string ended the completion, not the limit."""


class _Resident:
    """A running vLLM for one architecture. Its weights are dummies until the first `hold`."""

    def __init__(self, vllm: ModuleType, model: PreTrainedModel, key: str, memory_frac: float) -> None:
        self._vllm, self.key = vllm, key
        self._on_cpu = model.device.type == "cpu"
        self._devices = [] if self._on_cpu else [model.device]
        self._synced: tuple[weakref.ref[nn.Module], int] | None = None
        self._sleeps = sleeps_between_calls(model.device.type, sum(weight.nbytes for weight in model.parameters()))
        self._asleep = False
        with _process_state_restored(self._devices), tempfile.TemporaryDirectory(prefix="bench-vllm-") as folder:
            # vLLM loads its model from a folder. A config is enough, because the weights are written later.
            config = copy.deepcopy(model.config)
            config.architectures = [type(model).__name__]
            if isinstance(model.get_output_embeddings(), Float32Head):
                config.head_dtype = "float32"  # vLLM's name for it
            config.save_pretrained(folder)
            self._engine = self._vllm.LLM(
                folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",
                dtype=str(model.dtype).removeprefix("torch."),
                logprobs_mode="processed_logprobs",
                gpu_memory_utilization=memory_frac,
                kv_cache_memory_bytes=CPU_CACHE_BYTES if self._on_cpu else None,
                enable_sleep_mode=self._sleeps,
                enforce_eager=self._on_cpu,
                # With chunked prefill, vLLM rewinds the generator if noise was used too early. CPU generators cannot be
                # rewound.
                enable_chunked_prefill=False if self._on_cpu else None,
            ).llm_engine

    def try_out(self) -> None:
        """Run one sequence, because operations that vLLM has no kernel for fail only when they run."""
        self._score([[0, 0]])

    def hold(self, model: PreTrainedModel) -> None:
        """Sync the weights unless vLLM has this model's. Raises EngineMismatchError if the parity probe fails."""
        version = weight_version(model)
        if self._synced is not None and self._synced[0]() is model and self._synced[1] == version:
            return
        self._synced = None
        if self._asleep:
            # vLLM allocates from the driver, so torch must first return the memory in its own cache.
            torch.cuda.empty_cache()
            self._engine.wake_up(["weights"])
            self._write(model)
            # The cache wakes last, so that its memory is still free while the weights are written.
            self._engine.wake_up(["kv_cache"])
            self._asleep = False
        else:
            self._write(model)
        sequences = probe_sequences(model)
        require_parity(model, sequences, self._score(sequences), "vLLM")
        self._synced = (weakref.ref(model), version)

    def rest(self) -> None:
        """Put vLLM to sleep if it sleeps between calls. This frees its memory and loses its weights."""
        if self._sleeps:
            self._engine.sleep(level=2)
            self._asleep, self._synced = True, None

    def complete(
        self,
        samples: list[_Sample],
        params: SamplingParams,
        eos: list[int],
        decode: Callable[[list[int]], str],
        on_finished: OnFinished | None,
    ) -> None:
        """Fill in the samples' tokens and log-probs."""
        asked = [
            self._sampling(
                max_tokens=params.max_completion_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                # Only 63 bits, because vLLM takes -1 for no seed.
                seed=sample.key & (2**63 - 1),
                logprobs=0,
                stop_token_ids=eos,
                # Tokens are delivered one by one only if each must be checked for stop strings.
                output_kind="DELTA" if params.stop else "FINAL_ONLY",
            )
            for sample in samples
        ]

        def take(answer: RequestOutput) -> None:
            row, drawn = int(answer.request_id), answer.outputs[0]
            sample = samples[row]
            # These tokens were already under way when the request was aborted.
            if sample.stopped:
                return
            for token, logp in zip(drawn.token_ids, drawn.logprobs.logprobs, strict=True):
                if not sample.stopped:
                    sample.tokens.append(token)
                    sample.logps.append(logp)
                    sample.stopped = token in eos or ends_with_stop(sample.tokens, params.stop, decode)
            if sample.stopped and not answer.finished:
                self._engine.abort_request([answer.request_id])
            if on_finished is not None and (sample.stopped or answer.finished):
                on_finished(row, sample.tokens, not sample.stopped)

        # The cache may contain keys and values of old weights. Entries of earlier calls with the same weights must be
        # dropped too, or rounding would depend on history.
        if not self._engine.reset_prefix_cache():
            raise EngineMismatchError("engines.prefix_cache_not_emptied")
        self._run([sample.prompt for sample in samples], asked, take)

    def shut_down(self) -> None:
        with _process_state_restored(self._devices):
            self._engine.engine_core.shutdown()
            # The engine's memory is freed only when nothing refers to it. Other objects may still refer to `self`, so
            # the attribute is deleted.
            del self._engine

    def _score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return, for each sequence, the log-prob at temperature 1 of each token but the first."""
        asked = self._sampling(max_tokens=1, temperature=0.0, prompt_logprobs=0, output_kind="FINAL_ONLY")
        scored: dict[int, list[float]] = {}

        def take(answer: RequestOutput) -> None:
            scored[int(answer.request_id)] = list(answer.prompt_logprobs.logprobs)

        self._run(sequences, [asked] * len(sequences), take)
        return [scored[row] for row in range(len(sequences))]

    def _sampling(self, output_kind: str, **params: float | list[int]) -> VllmParams:
        return self._vllm.SamplingParams(
            **params,
            # The tokens that end a completion are passed as stop_token_ids. Otherwise vLLM would also use the config's.
            ignore_eos=True,
            detokenize=False,
            flat_logprobs=True,
            output_kind=self._vllm.sampling_params.RequestOutputKind[output_kind],
        )

    def _run(
        self, prompts: Sequence[Sequence[int]], asked: Sequence[VllmParams], take: Callable[[RequestOutput], None]
    ) -> None:
        """Send the prompts to vLLM and pass its answers to `take`. An answer's `request_id` is the prompt's index.

        If this is interrupted, vLLM is left in an unusable state, so it is dropped.
        """
        finished = False
        try:
            with _process_state_restored(self._devices):
                for row, (prompt, sampling) in enumerate(zip(prompts, asked, strict=True)):
                    self._engine.add_request(str(row), {"prompt_token_ids": list(prompt)}, sampling)
                while self._engine.has_unfinished_requests():
                    for answer in self._engine.step():
                        take(answer)
            finished = True
        finally:
            if not finished:
                _drop(self)

    def _write(self, model: PreTrainedModel) -> None:
        # On a CPU, a tied output head is repacked only if it is passed under its own name.
        weights = [(name, weight.detach()) for name, weight in model.named_parameters(remove_duplicate=False)]
        if self._on_cpu or _is_packed(model):
            # These weights are packed for the kernels, and load_weights would not repack them.
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        else:
            # `and None` drops the names that load_weights returns.
            self._engine.apply_model(lambda inside: inside.load_weights(weights) and None)


def _is_packed(model: PreTrainedModel) -> bool:
    """Return whether vLLM packs the model's weights for its GPU kernels, as it does experts and quantised weights."""
    config = model.config.get_text_config()
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in (*experts, "quantization_config"))


_resident: _Resident | None = None


def resident_engine(model: PreTrainedModel, memory_frac: float) -> _Resident:
    """Return this process's vLLM for models of this architecture, dtype and device, starting it if needed.

    If the running vLLM is for another kind of model, it is shut down first.
    """
    global _resident
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    computed = [str(model.dtype), type(model.get_output_embeddings()).__name__, str(model.device)]
    key = json.dumps([type(model).__name__, *computed, memory_frac, config], default=str)
    if _resident is not None and _resident.key != key:
        _drop(_resident)
    if _resident is None:
        _resident = _start(model, key, memory_frac)
    return _resident


def _start(model: PreTrainedModel, key: str, memory_frac: float) -> _Resident:
    vllm = _import_vllm(model.device.type == "cpu")
    try:
        resident = _Resident(vllm, model, key, memory_frac)
        resident.try_out()
        # Sleep, because the trainer's gradients and optimiser need the memory next.
        resident.rest()
    except (ValueError, RuntimeError) as error:
        raise RefusedError(
            "engines.vllm_cannot_run_model",
            version=vllm.__version__,
            model=type(model).__name__,
            device=model.device,
            error=error,
        ) from error
    return resident


def _drop(resident: _Resident) -> None:
    global _resident
    if _resident is resident:
        _resident = None
    # If a cell has several processes, shutting vLLM down would destroy their process group.
    if Processes.here().size == 1:
        resident.shut_down()


def _import_vllm(on_cpu: bool) -> ModuleType:
    if importlib.util.find_spec("vllm") is None:
        remedy = (
            "On a CPU it runs in an environment of its own: make .venv-vllm, then .venv-vllm/bin/bench. Or use"
            if on_cpu
            else "Run: pip install -e '.[vllm]'. Or use"
        )
        raise RefusedError("engines.vllm_not_installed", remedy=remedy)
    # Set these before the import, which reads them. Values that the user has set take precedence.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        importlib.import_module("vllm.sampling_params")
        return importlib.import_module("vllm")
    except ImportError as error:
        raise RefusedError("engines.vllm_not_importable", error=error) from error


@contextmanager
def _process_state_restored(devices: list[torch.device]) -> Iterator[None]:
    """Restore the process's random generators, thread count and torch.set_num_threads on leaving the context.

    vLLM seeds the global generators when it starts and uses them later. On a CPU it replaces torch.set_num_threads by a
    function that does nothing.
    """
    python, numpy = random.getstate(), np.random.get_state()
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_num_threads = set_num_threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
