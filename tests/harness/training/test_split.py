from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

from tests.harness.training.together import VARIANTS, Trained, free_port, in_two, run_here, spec_of

STEPS = range(1, 4)
"""Batches; of two optimiser steps each, but for one update."""
TOLERANCE = {"rows": 1e-5, "fully": 5e-5}


def all_variants(folder: Path) -> None:
    for sharding in TOLERANCE:
        for variant in VARIANTS:
            trained = Trained(spec_of(variant, processes=2, sharding=sharding))
            result = run_here(trained, STEPS)
            if result:
                torch.save(result, folder / f"{sharding} {variant}.pt")


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    multiprocessing.spawn(in_two, args=(free_port(), all_variants, tmp_path), nprocs=2)
    for variant in VARIANTS:
        alone = run_here(Trained(spec_of(variant)), STEPS)
        for sharding, tolerance in TOLERANCE.items():
            together: dict[str, Any] = torch.load(tmp_path / f"{sharding} {variant}.pt")
            worst = max(
                float((together["weights"][name] - weight).abs().max()) for name, weight in alone["weights"].items()
            )
            assert worst <= tolerance, (variant, sharding)
            for name, value in alone["metrics"].items():
                assert together["metrics"][name] == pytest.approx(value, rel=1e-3, abs=1e-4), (variant, sharding, name)
