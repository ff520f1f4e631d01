"""vLLM in this process: the only file that imports vllm. One engine a process holds a copy of the weights of one model.

Before it generates for a model whose weights it does not hold, they are written into it and a parity probe compares
log-probs (`harness.engines.parity`). `sync_s` is the time of both. For a large model on a GPU, vLLM sleeps between the
calls of `generate`. It gives back the memory of its weights and its cache, and its weights are written anew whenever it
wakes. vLLM mixes prefill and decoding in its batches, so all the rest is `decode_s`.

vLLM seeds the process's random generators, uses them, and on a CPU disables torch.set_num_threads; each is restored. On
a CPU it binds the process's memory to one NUMA node for good.

Noise: a sample's seed depends on its key alone. So the same call gives the same tokens with the same version of vLLM on
the same hardware. The other samples in the batch change a sample's logits by rounding only, which now and then decides
a token. VLLM_BATCH_INVARIANT=1 rules that out on the GPUs for which vLLM supports it. The noise is not that of the
torch engine, and differs between devices and versions of vLLM. On a CPU vLLM uses the lower 32 bits of a seed.
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

# vLLM reads these when it is imported. It then runs in this process, where weights are passed by reference and no
# threads are bound to cores. It sends no usage statistics.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmEngine:
    """Engine (see `harness.engines.base`) that lends this process's vLLM to one model."""

    def __init__(
        self,
        model: PreTrainedModel,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        decode: Callable[[list[int]], str],
        memory_frac: float,
    ) -> None:
        """Start vLLM if none for this architecture is running.

        decode: token ids -> text; only called if `stop` strings are given. memory_frac: share of the GPU's memory.
        Raises RefusedError if vLLM is not installed, or cannot run this model here.
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
            # Greedy sampling is from a point mass, whose log-prob is 0.
            [one.logps if params.temperature > 0 else [0.0] * len(one.tokens) for one in samples],
            [not one.stopped for one in samples],
            self._pad,
            cost,
        )


@dataclass
class _Sample:
    """One completion that vLLM works on."""

    prompt: Sequence[int]
    """Its token ids."""
    key: int
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    stopped: bool = False
    """True if its last token ended it, not the limit."""


class _Resident:
    """A running vLLM for one architecture, with dummy weights at first."""

    def __init__(self, vllm: ModuleType, model: PreTrainedModel, key: str, memory_frac: float) -> None:
        self._vllm, self.key = vllm, key
        self._on_cpu = model.device.type == "cpu"
        self._devices = [] if self._on_cpu else [model.device]
        self._synced: tuple[weakref.ref[nn.Module], int] | None = None
        self._sleeps = sleeps_between_calls(model.device.type, sum(weight.nbytes for weight in model.parameters()))
        self._asleep = False
        with _process_state_restored(self._devices), tempfile.TemporaryDirectory(prefix="bench-vllm-") as folder:
            # vLLM reads its model from a folder. A config suffices, since the weights are written in later.
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
                # With a prompt in parts, vLLM takes back noise that was used too early. A generator on a CPU cannot do
                # that.
                enable_chunked_prefill=False if self._on_cpu else None,
            ).llm_engine

    def try_out(self) -> None:
        """Run one sequence, since operations without a kernel in vLLM fail only here."""
        self._score([[0, 0]])

    def hold(self, model: PreTrainedModel) -> None:
        """Sync unless vLLM holds this model's current weights; raise EngineMismatchError if the probe fails."""
        version = weight_version(model)
        if self._synced is not None and self._synced[0]() is model and self._synced[1] == version:
            return
        self._synced = None
        if self._asleep:
            # vLLM takes its memory from the driver, so torch must return what it has freed but kept.
            torch.cuda.empty_cache()
            self._engine.wake_up(["weights"])
            self._write(model)
            # The cache wakes last: while the weights are written, its memory is still free.
            self._engine.wake_up(["kv_cache"])
            self._asleep = False
        else:
            self._write(model)
        sequences = probe_sequences(model)
        require_parity(model, sequences, self._score(sequences), "vLLM")
        self._synced = (weakref.ref(model), version)

    def rest(self) -> None:
        """Give back the memory until the next call, if vLLM sleeps between calls: its weights are lost."""
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
                # 63 bits: vLLM takes -1 for no seed at all.
                seed=sample.key & (2**63 - 1),
                logprobs=0,
                stop_token_ids=eos,
                # Token by token only if each token must be checked for stop strings.
                output_kind="DELTA" if params.stop else "FINAL_ONLY",
            )
            for sample in samples
        ]

        def take(answer: RequestOutput) -> None:
            row, drawn = int(answer.request_id), answer.outputs[0]
            sample = samples[row]
            # Tokens that were under way when the request was aborted.
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

        # The cache may hold keys and values of old weights. Those of earlier calls must go too, or rounding would
        # depend on history.
        if not self._engine.reset_prefix_cache():
            raise EngineMismatchError("engines.prefix_cache_not_emptied")
        self._run([sample.prompt for sample in samples], asked, take)

    def shut_down(self) -> None:
        with _process_state_restored(self._devices):
            self._engine.engine_core.shutdown()
            # Its memory is free once nothing refers to it. Others may still refer to this object, so the attribute is
            # deleted.
            del self._engine

    def _score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-prob of each token but the first, at temperature 1."""
        asked = self._sampling(max_tokens=1, temperature=0.0, prompt_logprobs=0, output_kind="FINAL_ONLY")
        scored: dict[int, list[float]] = {}

        def take(answer: RequestOutput) -> None:
            scored[int(answer.request_id)] = list(answer.prompt_logprobs.logprobs)

        self._run(sequences, [asked] * len(sequences), take)
        return [scored[row] for row in range(len(sequences))]

    def _sampling(self, output_kind: str, **params: float | list[int]) -> VllmParams:
        return self._vllm.SamplingParams(
            **params,
            # The tokens that end a completion are passed as stop_token_ids; vLLM would look into the config too.
            ignore_eos=True,
            detokenize=False,
            flat_logprobs=True,
            output_kind=self._vllm.sampling_params.RequestOutputKind[output_kind],
        )

    def _run(
        self, prompts: Sequence[Sequence[int]], asked: Sequence[VllmParams], take: Callable[[RequestOutput], None]
    ) -> None:
        """Send the prompts to vLLM and take its answers until it has finished; `request_id` is the prompt's index.

        A vLLM that was interrupted on the way is given up: it is of no more use.
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
        # On a CPU, a tied output head is packed again only if it comes under its own name.
        weights = [(name, weight.detach()) for name, weight in model.named_parameters(remove_duplicate=False)]
        if self._on_cpu or _is_packed(model):
            # Weights are packed for the kernels, and load_weights would not pack them again.
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        else:
            # `and None` drops the names that load_weights returns.
            self._engine.apply_model(lambda inside: inside.load_weights(weights) and None)


def _is_packed(model: PreTrainedModel) -> bool:
    """Return whether vLLM packs the model's weights for its kernels on a GPU: those of experts, and quantised ones."""
    config = model.config.get_text_config()
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in (*experts, "quantization_config"))


_resident: _Resident | None = None


def resident_engine(model: PreTrainedModel, memory_frac: float) -> _Resident:
    """Return this process's vLLM for models of this architecture, dtype and device.

    One for other models is shut down first.
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
        # The trainer's gradients and optimiser need the memory next.
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
    # With several processes it would end the process group of the cell, which ends with the cell.
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
    # Set before the import, which reads them; the user's own values win.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        importlib.import_module("vllm.sampling_params")
        return importlib.import_module("vllm")
    except ImportError as error:
        raise RefusedError("engines.vllm_not_importable", error=error) from error


@contextmanager
def _process_state_restored(devices: list[torch.device]) -> Iterator[None]:
    """Restore the process's random generators and its number of threads at the end of the context.

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
