"""What `auto` means on a machine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from harness.config.engine import ENGINES, engine_on
from harness.config.hashing import semantic_hash
from harness.config.machine import device_kind, dtype_on, resolved_for_machine
from harness.errors import RefusedError
from tests.harness.config.cases import spec
from tests.refusals import refuses

LEFT_OPEN: dict[str, Any] = {"train.device": "auto", "model.dtype": "auto", "rollout.engine": "auto"}


@pytest.mark.parametrize(
    ("device", "dtype", "engine"),
    [("cpu", "float32", "torch"), ("cuda", "bfloat16", "vllm"), ("cuda:1", "bfloat16", "vllm")],
)
def test_auto_follows_the_device(device: str, dtype: str, engine: str) -> None:
    assert (dtype_on(device, "auto"), engine_on(device, "auto")) == (dtype, engine)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_what_is_asked_for_stays(device: str) -> None:
    assert {device_kind(device, partial(bool, there)) for there in (True, False)} == {device}
    assert [dtype_on(device, dtype) for dtype in ("float32", "bfloat16")] == ["float32", "bfloat16"]
    assert [engine_on(device, engine) for engine in ("torch", "vllm")] == ["torch", "vllm"]


@pytest.mark.parametrize(
    ("cuda", "expected"), [(True, ("cuda", "bfloat16", "vllm")), (False, ("cpu", "float32", "torch"))]
)
def test_a_settled_spec_leaves_nothing_to_the_machine(cuda: bool, expected: tuple[str, ...]) -> None:
    done = resolved_for_machine(spec(LEFT_OPEN), lambda: cuda)
    assert (done.train.device, done.model.dtype, done.rollout.engine) == expected
    assert resolved_for_machine(done, lambda: not cuda) == done


def test_two_kinds_of_machine_have_two_hashes_and_auto_that_of_what_it_means() -> None:
    on_gpu, on_cpu = (resolved_for_machine(spec(LEFT_OPEN), partial(bool, cuda)) for cuda in (True, False))
    assert semantic_hash(on_gpu) != semantic_hash(on_cpu)
    written_out = {"train.device": "cpu", "model.dtype": "float32", "rollout.engine": "torch"}
    assert semantic_hash(on_cpu) == semantic_hash(spec(written_out))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rollout.dtype": "float32"}, ("trainer", "model")),
        ({"rollout.dtype": "bfloat16"}, ("bfloat16", "model")),
        ({"model.head_dtype": "float32"}, ("trainer", "model")),
        ({"model.dtype": "bfloat16", "model.head_dtype": "float32"}, ("trainer", "float32")),
        ({"model.dtype": "bfloat16", "rollout.dtype": "bfloat16"}, ("trainer", "model")),
        ({"model.dtype": "bfloat16", "rollout.dtype": "float32"}, ("float32", "model")),
    ],
)
def test_a_precision_that_is_the_models_anyway_has_no_name_of_its_own(
    settings: dict[str, Any], expected: tuple[str, str]
) -> None:
    done = resolved_for_machine(spec({"train.device": "cpu"}, settings), lambda: False)
    assert (done.rollout.dtype, done.model.head_dtype) == expected


def test_an_engine_without_a_float32_head_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = spec({"model.dtype": "bfloat16", "model.head_dtype": "float32", "rollout.engine": "torch"})
    assert resolved_for_machine(wide, lambda: False).model.head_dtype == "float32"
    narrow = replace(ENGINES.find("torch"), head_dtypes=("model",))
    monkeypatch.setattr(type(ENGINES), "find", lambda self, name: narrow)
    with refuses(RefusedError, "config.head_dtype_not_offered", head_dtype="float32", engine="torch"):
        resolved_for_machine(wide, lambda: False)
