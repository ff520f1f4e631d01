from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.spawn import spawn

from harness import processes
from harness.engines.base import SharedEngine
from harness.processes import Interrupted, Processes, RowShare, by_all
from harness.training import update_report
from harness.training.optimizer import DivergedError, TokenBudget
from tests.harness.training.together import ROWS_ONLY, VARIANTS, Trained, free_port, in_two, run_here, spec_of

STEPS = range(1, 4)
"""Batches; of two optimiser steps each, but for one update."""
TOLERANCE = {"rows": 1e-5, "fully": 5e-5}
OF_VARIANT = {"a teacher in the loss": 2e-6, "a teacher in the reward": 2e-6, "muon": 2e-4}
"""Other tolerances, of both shardings. Muon multiplies what is small in a matrix by up to 500; all its steps together
are about 1e-3."""

IDLE_ROWS = 2
"""Fewer than the batch has, so that a sample of them is measured."""


def all_variants(folder: Path) -> None:
    update_report.IDLE_ROWS = IDLE_ROWS
    for sharding in TOLERANCE:
        for variant in (one for one in VARIANTS if sharding == "rows" or one not in ROWS_ONLY):
            trained = Trained(spec_of(variant, processes=2, sharding=sharding))
            result = run_here(trained, STEPS)
            if result:
                torch.save(result, folder / f"{sharding} {variant}.pt")


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_report, "IDLE_ROWS", IDLE_ROWS)
    spawn(in_two, args=(free_port(), all_variants, tmp_path), nprocs=2)  # type: ignore[no-untyped-call]
    for variant in VARIANTS:
        alone = run_here(Trained(spec_of(variant)), STEPS)
        for sharding, tolerance in TOLERANCE.items():
            if sharding == "fully" and variant in ROWS_ONLY:
                continue
            together: dict[str, Any] = torch.load(tmp_path / f"{sharding} {variant}.pt")
            worst = max(
                float((together["weights"][name] - weight).abs().max()) for name, weight in alone["weights"].items()
            )
            assert worst <= OF_VARIANT.get(variant, tolerance), (variant, sharding)
            for name, value in alone["metrics"].items():
                expected = None if value is None else pytest.approx(value, rel=1e-3, abs=1e-4)
                assert together["metrics"][name] == expected, (variant, sharding, name)


class Slow:
    """An engine whose draws take long. The second process is asked to stop in the middle of its first one."""

    def generate(self, prompts: Any, keys: Any, params: Any) -> Any:
        here = Processes.here()
        if here.rank == 1:
            here.stopping.ask()
        return None


class Counting:
    def __init__(self) -> None:
        self.draws = SharedEngine(Slow())  # type: ignore[arg-type]
        Processes.here().share(self)

    @by_all
    def ranks(self) -> list[int]:
        return Processes.here().everyones(Processes.here().rank)


def stopped_in_a_draw(folder: Path) -> None:
    counting, here = Counting(), Processes.here()
    if not here.is_first:
        here.serve(DivergedError)
        return
    with pytest.raises(Interrupted):
        counting.draws.generate([[1], [2]], torch.zeros(2, 1), None)  # type: ignore[arg-type]
    here.stopping.ask()  # the second time, as to all of them; a checkpoint is written nevertheless
    (folder / "ranks.json").write_text(json.dumps(counting.ranks()))
    here.dismiss()


@pytest.mark.slow
def test_processes_that_are_stopped_in_a_draw_can_still_write_a_checkpoint(tmp_path: Path) -> None:
    """A draw takes minutes, and what was trained since the last checkpoint must not be lost."""
    spawn(in_two, args=(free_port(), stopped_in_a_draw, tmp_path), nprocs=2)  # type: ignore[no-untyped-call]
    assert json.loads((tmp_path / "ranks.json").read_text()) == [0, 1]


class InOne(Processes):
    """One of several processes, whose collectives are done by hand."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.summed: list[torch.Tensor] = []

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        self.summed += [tensor.clone() for tensor in tensors]


@given(
    tokens=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    size=st.integers(1, 9),
    seed=st.integers(0, 100),
)
def test_each_row_is_computed_once_and_the_work_is_even(tokens: list[int], size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.rand(len(tokens), generator=generator) < 0.8).nonzero()[:, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_here", Processes(0, size))
        share = RowShare.of(rows, torch.tensor(tokens))
    assert torch.equal(torch.cat(share.of_process), rows)
    work = [sum(tokens[row] for row in own.tolist()) for own in share.of_process]
    assert max(work) <= sum(work) / size + max(tokens)


def test_what_others_have_computed_is_taken_over_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are of nobody's share stay, and what an idle pass left of another's row does not count."""
    rows, sent = torch.tensor([1, 2, 4]), []
    for rank in range(2):
        here = InOne(rank, 2)
        monkeypatch.setattr(processes, "_here", here)
        found = torch.tensor([9.0, 1, 2, 9, 4])
        RowShare.of(rows, torch.ones(5)).exchange_(found)
        assert found[[0, 3]].tolist() == [9, 9]
        sent.append(here.summed[0])
    assert torch.equal(sent[0] + sent[1], torch.tensor([1.0, 2, 4]))


def test_memory_that_runs_out_in_one_process_lowers_the_budget_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two processes has room enough, and hears of the first."""
    heard = iter([[(16, "card 0 is full"), None], [None, None]])
    monkeypatch.setattr(processes, "_here", InOne(1, 2))
    monkeypatch.setattr(InOne, "everyones", lambda self, value: next(heard), raising=False)
    budget = TokenBudget(64)
    tried: list[int] = []
    budget.run(lambda tokens: [torch.arange(tokens)], lambda micros: tried.append(len(micros[0])))
    assert tried == [64, 16]
    assert budget.notes()[0].startswith("out of memory with 64 tokens per pass (card 0 is full): going on with 16")
