"""Which engines there are, as a spec sees them."""

from __future__ import annotations

import pytest

from harness.config.engine import ENGINES
from harness.config.knobs import active
from harness.errors import RefusedError
from tests.harness.config.cases import spec
from tests.refusals import refuses


def test_shipped_engines_are_found_in_their_folder() -> None:
    assert ENGINES.names() == ("torch", "vllm")


def test_an_unknown_engine_is_told_with_the_nearest_one() -> None:
    with refuses(RefusedError, "bench.unknown_name", noun="engine", nearest="; did you mean vllm?"):
        spec({"rollout.engine": "vlm"})


@pytest.mark.parametrize(("engine", "there"), [("torch", False), ("vllm", True), ("auto", True)])
def test_a_knob_of_one_engine_does_not_exist_with_another(engine: str, there: bool) -> None:
    assert ("rollout.vllm_memory_frac" in active(spec({"rollout.engine": engine}))) == there
