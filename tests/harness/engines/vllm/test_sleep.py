"""When vLLM sleeps, wakes and is given the weights, with a stand-in for vLLM that notes what it is asked; and, where
the real one is installed, that drawing goes on as before. On a CPU the real one pauses and resumes, but frees nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.config.rollout import RolloutSpec
from harness.engines.base import Completions, make_engine
from harness.engines.vllm import VLLM
from harness.engines.vllm import engine as vllm_engine
from harness.engines.vllm.engine import VllmEngine
from harness.engines.vllm.limits import sleeps_between_calls
from harness.models.language_model import LanguageModel, load_model
from harness.shelves.engine_contract import ContractTrial, rows_of

SPEC = RolloutSpec(engine="vllm", max_completion_tokens=40)


class StandIn:
    """The `llm_engine` of a vLLM that notes its calls and draws nothing."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.options: dict[str, Any] = {}
        self.engine_core = SimpleNamespace(shutdown=lambda: self.calls.append("shut down"))

    def start(self, folder: str, **options: Any) -> Any:
        self.options = options
        return SimpleNamespace(llm_engine=self)

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags[0]}")

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        self.calls.append(method)

    def apply_model(self, function: Any) -> None:
        self.calls.append("load_weights")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    module = SimpleNamespace(LLM=made.start, __version__="0")
    monkeypatch.setattr(vllm_engine, "_import_vllm", lambda on_cpu: module)
    monkeypatch.setattr(vllm_engine, "_resident", None)
    monkeypatch.setattr(vllm_engine, "require_parity", lambda *args: made.calls.append("parity"))
    monkeypatch.setattr(vllm_engine._Resident, "_score", lambda resident, sequences: made.calls.append("score"))
    monkeypatch.setattr(vllm_engine._Resident, "complete", lambda resident, *args: made.calls.append("draw"))
    monkeypatch.setattr(Completions, "of", lambda *args, **settings: None)
    yield made
    monkeypatch.setattr(vllm_engine, "_resident", None)


@pytest.fixture
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


def engine_of(language_model: LanguageModel) -> VllmEngine:
    decode = language_model.decode
    return VllmEngine(language_model.model, language_model.pad_token_id, language_model.eos_token_ids, decode, 0.3)


def test_a_large_model_is_written_between_two_awakenings_at_every_call(
    tiny: LanguageModel, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "sleeps_between_calls", lambda device, weights_bytes: True)
    engine = engine_of(tiny)
    assert stand_in.options["enable_sleep_mode"] is True
    assert stand_in.calls == ["score", "sleep 2"], "before the trainer takes its memory, vLLM has given it back"
    for _ in range(2):  # its weights are lost, though the trainer's have not changed
        stand_in.calls.clear()
        ContractTrial(engine, tiny).draw()
        awake = ["reload_weights", "wake kv_cache", "score", "parity", "draw"]
        assert stand_in.calls == ["wake weights", *awake, "sleep 2"]


def test_a_small_model_stays_awake_and_is_written_when_it_has_changed(tiny: LanguageModel, stand_in: StandIn) -> None:
    engine = engine_of(tiny)
    assert stand_in.options["enable_sleep_mode"] is False
    for expected in (["score", "reload_weights", "score", "parity", "draw"], ["draw"]):
        ContractTrial(engine, tiny).draw()
        assert stand_in.calls == expected
        stand_in.calls.clear()
    with torch.no_grad():
        tiny.model.get_input_embeddings().weight.mul_(2)
    ContractTrial(engine, tiny).draw()
    assert stand_in.calls == ["reload_weights", "score", "parity", "draw"]


@pytest.mark.parametrize(
    ("config", "written_by"),
    [
        ({}, "load_weights"),
        ({"num_local_experts": 8}, "reload_weights"),
        ({"quantization_config": {"quant_method": "fp8"}}, "reload_weights"),
    ],
)
def test_on_a_gpu_only_packed_weights_are_packed_again(
    tiny: LanguageModel, stand_in: StandIn, config: dict[str, Any], written_by: str
) -> None:
    engine_of(tiny)
    resident = vllm_engine._resident
    assert resident is not None
    resident._on_cpu = False
    for name, value in config.items():
        setattr(tiny.model.config, name, value)
    stand_in.calls.clear()
    resident._write(tiny.model)
    assert stand_in.calls == [written_by]


def test_models_above_a_billion_and_a_half_sleep_on_a_gpu() -> None:
    assert sleeps_between_calls("cuda", 2 * 1_600_000_000)
    assert not sleeps_between_calls("cuda", 2 * 1_400_000_000)
    assert not sleeps_between_calls("cpu", 4 * 7_000_000_000)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_refused_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:512,expandable_segments:True")
    refusal = VLLM.refusal(SPEC, "cuda")
    assert refusal is not None and name in refusal and "rollout.engine=torch" in refusal
    assert VLLM.refusal(SPEC, "cpu") is None
    monkeypatch.setenv(name, "expandable_segments:False")
    assert VLLM.refusal(SPEC, "cuda") is None


def test_the_real_one_draws_the_same_after_sleeping(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")
    awake = rows_of(ContractTrial(make_engine(SPEC, language_model), language_model).draw())
    assert vllm_engine._resident is not None
    vllm_engine._drop(vllm_engine._resident)
    start, sleeps = vllm.LLM, []

    def on_cpu(folder: str, **options: Any) -> Any:
        options.pop("enable_sleep_mode")  # which a CPU refuses
        return start(folder, **options)

    monkeypatch.setattr(vllm, "LLM", on_cpu)
    monkeypatch.setattr(vllm_engine, "sleeps_between_calls", lambda device, weights_bytes: True)
    trial = ContractTrial(make_engine(SPEC, language_model), language_model)
    for _ in range(2):
        assert vllm_engine._resident is not None
        sleeps.append(vllm_engine._resident._engine.is_sleeping())
        assert rows_of(trial.draw()) == awake
    assert sleeps == [True, True]
    vllm_engine._drop(vllm_engine._resident)
