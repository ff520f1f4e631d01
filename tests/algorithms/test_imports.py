from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import algorithms
import algorithms.preference

PACKAGES = (algorithms, algorithms.preference)


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(algorithms.__file__).parents[1])


def test_presets_need_no_torch() -> None:
    run(
        "import sys, algorithms\n"
        "from algorithms import Objective, preset, presets, with_overrides, differences_that_cannot_act\n"
        "grpo = algorithms.preset('grpo')\n"
        "differences_that_cannot_act(grpo, with_overrides(grpo, {'rule.clip_high': 0.28}), 1)\n"
        "algorithms.formula(grpo), algorithms.describe('grpo'), algorithms.RULES.all(), algorithms.objective_knobs()\n"
        "from algorithms import PreferenceObjective\n"
        "from algorithms.preference import PreferenceObjective, couples_pairs\n"
        "assert not couples_pairs(with_overrides(preset('dpo'), {'beta': 0.2})) and algorithms.formula(preset('dpo'))\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )


@pytest.mark.slow
def test_functions_are_found_whatever_was_imported_before() -> None:
    modules = [module.name for module in pkgutil.walk_packages(algorithms.__path__, "algorithms.")]
    assert {"algorithms.loss", "algorithms.rules.cispo", "algorithms.presets.pairs"} <= set(modules)
    run(
        f"import {', '.join(modules)}\n"
        "functions = [getattr(algorithms, name) for name in algorithms.__all__ if name.islower()]\n"
        "functions += [getattr(algorithms.preference, name) for name in algorithms.preference.__all__]\n"
        "assert len(functions) > 10 and all(callable(function) for function in functions)"
    )


def test_no_module_that_is_loaded_late_bears_a_public_name() -> None:
    for package in PACKAGES:
        assert package.__file__ is not None
        modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
        assert modules.intersection(package.__all__) <= {"presets"}


def test_every_public_name_exists() -> None:
    for package in PACKAGES:
        for name in package.__all__:
            assert getattr(package, name).__doc__ or name.isupper(), name
        assert not hasattr(package, "policy_los")
