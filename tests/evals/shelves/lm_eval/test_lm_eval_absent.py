"""What needs no lm-eval: refusals, and that nothing heavy is imported."""

from __future__ import annotations

import sys
import threading

import pytest

from evals.errors import EvalError
from evals.shelves.lm_eval.adapter import run_lm_eval
from harness.errors import RefusedError
from tests.evals.scripted import Scripted, undrawn
from tests.evals.test_lazy_imports import HEAVY, imported_by
from tests.harness.run.small import small_spec


def refusal(*names: str, **settings: object) -> str:
    with pytest.raises(EvalError) as raised:
        run_lm_eval(names, Scripted(undrawn), **settings)  # type: ignore[arg-type]
    return str(raised.value)


def test_without_lm_eval_its_installation_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert refusal("gsm8k_local") == "lm-eval is not installed: pip install -e '.[lm-eval]'"


def test_without_lm_eval_a_sweep_on_its_tasks_names_the_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(RefusedError, match=r"eval.tasks.1: lm-eval is not installed: pip install"):
        small_spec({"eval.tasks": ["arithmetic", "lm_eval:hellaswag"]})  # which no other test has loaded


def test_other_threads_are_refused():
    messages: list[str] = []
    thread = threading.Thread(target=lambda: messages.append(refusal("gsm8k_local")))
    thread.start()
    thread.join()
    assert "only the main thread can handle" in messages[0]


def test_a_limit_counts_documents():
    assert "limit is 0" in refusal("gsm8k_local", limit=0)


def test_a_task_must_be_named():
    assert "no lm-eval task is named" in refusal()


def test_importing_the_adapter_imports_nothing_heavy():
    assert imported_by("import evals.shelves.lm_eval.adapter").isdisjoint(HEAVY | {"lm_eval"})
