from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import algorithms


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(algorithms.__file__).parents[1])


def test_presets_need_no_torch() -> None:
    run(
        "import sys, algorithms\n"
        "from algorithms import Objective, preset, presets, with_overrides, differences_that_cannot_act\n"
        "grpo = algorithms.preset('grpo')\n"
        "differences_that_cannot_act(grpo, with_overrides(grpo, {'rule.clip_high': 0.28}), 1)\n"
        "algorithms.formula(grpo), algorithms.describe('grpo')\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )


def test_functions_are_found_whatever_was_imported_before() -> None:
    modules = [module.name for module in pkgutil.walk_packages(algorithms.__path__, "algorithms.")]
    assert {"algorithms.loss", "algorithms.knobs.rule", "algorithms.catalogue.entry"} <= set(modules)
    run(
        f"import {', '.join(modules)}\n"
        "functions = [getattr(algorithms, name) for name in algorithms.__all__ if name.islower()]\n"
        "assert len(functions) > 10 and all(callable(function) for function in functions)"
    )


def test_no_module_bears_a_public_name() -> None:
    modules = {path.stem for path in Path(algorithms.__file__).parent.iterdir()}
    assert modules.isdisjoint(algorithms.__all__)


def test_every_public_name_exists() -> None:
    for name in algorithms.__all__:
        assert getattr(algorithms, name).__doc__ or name.isupper(), name
    with pytest.raises(AttributeError, match="policy_los"):
        algorithms.policy_los  # noqa: B018
