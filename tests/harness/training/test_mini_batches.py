from __future__ import annotations

import pytest
import torch

from harness.training.optimizer import mini_batches
from tests.harness.run.small import small_spec

GROUPS, SAMPLES = 4, 4


class TestMiniBatches:
    def batches(self, updates: int, epochs: int, step: int = 1, seed: int = 0) -> list[list[int]]:
        settings = {"train.updates_per_rollout": updates, "train.epochs": epochs}
        groups = torch.arange(GROUPS).repeat_interleave(SAMPLES)
        return [
            rows.tolist()
            for epoch in range(epochs)
            for rows in mini_batches(groups, small_spec(settings, seed), step, epoch)
        ]

    @pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (4, 3), (1, 2)])
    def test_each_pass_holds_every_row_once_in_whole_groups(self, updates: int, epochs: int) -> None:
        batches = self.batches(updates, epochs)
        assert len(batches) == updates * epochs
        for epoch in range(epochs):
            rows = [row for batch in batches[epoch * updates : (epoch + 1) * updates] for row in batch]
            assert sorted(rows) == list(range(GROUPS * SAMPLES))
        for batch in batches:
            assert len(batch) == GROUPS * SAMPLES / updates
            groups = {row // SAMPLES for row in batch}
            assert batch == [row for row in range(GROUPS * SAMPLES) if row // SAMPLES in groups]

    def test_order_varies_with_step_epoch_and_seed(self) -> None:
        orders = [tuple(map(tuple, self.batches(4, 1, step))) for step in range(1, 30)]
        assert len(set(orders)) > 10
        both = self.batches(4, 8)
        assert len({tuple(map(tuple, both[4 * epoch : 4 * epoch + 4])) for epoch in range(8)}) > 3
        assert len({tuple(map(tuple, self.batches(4, 1, seed=seed))) for seed in range(20)}) > 5

    @pytest.mark.parametrize(("groups", "sizes"), [(0, []), (1, [1]), (3, [1, 1, 1]), (4, [1, 1, 1, 1])])
    def test_fewer_groups_than_steps(self, groups: int, sizes: list[int]) -> None:
        """Some groups were dropped: no optimiser step is taken on nothing."""
        spec = small_spec({"train.updates_per_rollout": 4})
        assert [len(rows) for rows in mini_batches(torch.arange(groups), spec, 1, 0)] == sizes

    def test_groups_that_do_not_divide(self) -> None:
        spec = small_spec({"train.updates_per_rollout": 2})
        assert sorted(len(rows) for rows in mini_batches(torch.tensor([5, 7, 9]), spec, 1, 0)) == [1, 2]
