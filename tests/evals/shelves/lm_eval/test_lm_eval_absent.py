"""What needs no lm-eval: refusals, and that nothing heavy is imported."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from evals.errors import EvalError
from evals.shelves.lm_eval.adapter import run_lm_eval
from harness.errors import RefusedError
from tests.evals.scripted import Scripted, undrawn
from tests.evals.test_lazy_imports import HEAVY, imported_by
from tests.harness.run.small import small_spec
from tests.refusals import refuses


def refusal(*names: str, **settings: Any) -> str:
    with pytest.raises(EvalError) as raised:
        run_lm_eval(names, Scripted(undrawn), **settings)
    return raised.value.code.rpartition(".")[2]


def test_without_lm_eval_its_installation_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with refuses(EvalError, "evals.shelves.lm_eval.lm_eval_not_installed", install="pip install -e '.[lm-eval]'"):
        run_lm_eval(["gsm8k_local"], Scripted(undrawn))
    with refuses(RefusedError, "evals.shelves.lm_eval.lm_eval_not_installed"):
        small_spec({"eval.tasks": ["arithmetic", "lm_eval:hellaswag"]})  # which no other test has loaded


def test_other_threads_are_refused():
    codes: list[str] = []
    thread = threading.Thread(target=lambda: codes.append(refusal("gsm8k_local")))
    thread.start()
    thread.join()
    assert codes == ["not_in_main_thread"]


def test_a_limit_counts_documents_of_a_task_that_is_named():
    assert refusal("gsm8k_local", limit=0) == "limit_too_small"
    assert refusal() == "no_task_named"


@pytest.mark.slow
def test_importing_the_adapter_imports_nothing_heavy():
    assert imported_by("import evals.shelves.lm_eval.adapter").isdisjoint(HEAVY | {"lm_eval"})
