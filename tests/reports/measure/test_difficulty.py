from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from algorithms import TokenBatch, advantages, policy_loss, preset
from algorithms.aggregation import Aggregation
from harness.records.files import DamagedRecordError
from reports.measure.difficulty import BINS, bin_of, difficulty
from reports.measure.measurements import Measurement, read_measurements
from tests.refusals import refuses
from tests.reports.rewriting import write_spec, write_steps
from tests.reports.synthetic import write_sweep


def test_bins_of_pass_rates():
    rates = np.array([0, 0.01, 0.24, 0.25, 0.49, 0.5, 0.74, 0.75, 0.99, 1])
    assert bin_of(rates).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def measurement_with(
    tmp_path: Path, rollouts: list[dict[str, Any]], steps: list[dict[str, Any]], **objective: Any
) -> Measurement:
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1)
    write_spec(sweep, "base", {"objective": {"aggregation": "token_mean"} | objective})
    (cell,) = sweep.cells
    for path in cell.rollouts.glob("*"):
        path.unlink()
    if rollouts:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rollouts), cell.rollouts / "000001-000002.parquet")
    write_steps(cell, steps)
    return read_measurements(sweep)["base"][0]


def rollout(step: int, problem: str, right: bool, tokens: int) -> dict[str, Any]:
    return {"step": step, "problem_id": problem, "correct": right, "tokens": [0] * tokens}


def test_shares_lengths_and_advantages_by_bin(tmp_path):
    rollouts = [
        *(rollout(1, "half", right, 10) for right in (True, False)),
        *(rollout(1, "none", False, 30) for _ in range(2)),
        *(rollout(2, "half", True, 40) for _ in range(2)),  # the same prompt, always solved in another step
    ]
    by_rate = [{"below_three_quarters": 1.0, "0": 0.25}, {"1": 0.5}]
    steps = [
        {"step": step, "generated_tokens": 80 * step} | {f"adv/abs_mean_at_rate_{name}": rates[name] for name in rates}
        for step, rates in enumerate(by_rate, start=1)
    ]
    found = difficulty(measurement_with(tmp_path, rollouts, steps))
    assert found is not None
    # Sums of |A| over the tokens of their step: (20 tokens * 1, 60 * 0.25) / 80, and 80 * 0.5 / 80.
    expected = {
        "0": (15 / 75, 0.25, 30, 1 / 3),
        "below_three_quarters": (20 / 75, 1.0, 10, 1 / 3),
        "1": (40 / 75, 0.5, 40, 1 / 3),
    }
    for i, name in enumerate(BINS):
        values = (found.share[i], found.advantage[i], found.tokens[i], found.prompts[i])
        if name in expected:
            assert values == pytest.approx(expected[name])
        else:
            assert values[3] == 0 and np.isnan([found.advantage[i], found.tokens[i]]).all()


def test_without_rollouts_or_their_columns_there_is_nothing(tmp_path):
    assert difficulty(measurement_with(tmp_path / "none", [], [])) is None
    assert difficulty(measurement_with(tmp_path / "older", [{"step": 1, "text": "x"}], [])) is None


def test_a_completion_without_a_verdict_is_a_damaged_record(tmp_path):
    gap = rollout(1, "a", True, 7) | {"correct": None}
    measurement = measurement_with(tmp_path, [rollout(1, "a", True, 7), gap], [])
    with refuses(
        DamagedRecordError, "records.column_with_gaps", path="000001-000002.parquet", name="correct", n_gaps=1
    ):
        difficulty(measurement)


def batch_of(rng: np.random.Generator, objective: Any) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Two optimiser steps on one rollout batch: six groups of four completions with lengths, rewards and advantages,
    some of them cut at the limit; and the rows that are recorded of them."""
    N, T = 24, 40
    lengths = torch.tensor(rng.integers(3, T + 1, N))
    groups = torch.arange(N) // 4
    rewards = torch.tensor(rng.integers(0, 2, N), dtype=torch.float32)
    rewards[:4] = 1.0  # a group without a difference
    truncated = lengths >= lengths.sort().values[-6]
    mask = torch.arange(T)[None] < lengths[:, None]
    advantage = advantages(objective, rewards, groups, mask)
    loss_mask = mask & ~truncated[:, None] if objective.overlong.type == "mask_after" else mask
    rows = [
        {
            "step": 1,
            "problem_id": f"p{int(groups[row])}",
            "correct": bool(rewards[row]),
            "tokens": [0] * int(lengths[row]),
            "truncated": bool(truncated[row]),
            "token/advantage": torch.broadcast_to(advantage.reshape(N, -1), (N, T))[row, : lengths[row]].tolist(),
            "token/update": [int(groups[row]) % 2],
        }
        for row in range(N)
    ]
    return advantage, (loss_mask, groups), rows


@pytest.mark.parametrize("overlong", ["penalise", "mask_after"])
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_shares_are_those_of_the_gradient_of_the_loss(tmp_path, aggregation, overlong):
    """The absolute derivatives by the log-probs of all tokens, of two optimiser steps at ratio 1."""
    objective: Any = preset("grpo", aggregation=aggregation, **{"overlong.type": overlong})
    advantage, (mask, groups), rows = batch_of(np.random.default_rng(0), objective)
    found = difficulty(
        measurement_with(
            tmp_path,
            rows,
            [{"step": 1, "generated_tokens": 9, "len/limit": 40}],
            **objective.model_dump(include={"aggregation", "overlong", "zero_std"}),
        )
    )
    derivatives = torch.zeros_like(mask, dtype=torch.float32)
    for update in (0, 1):
        chosen = groups % 2 == update
        logp = torch.zeros_like(mask[chosen], dtype=torch.float32, requires_grad=True)
        batch = TokenBatch(
            logp=logp,
            old_logp=logp.detach(),
            mask=mask[chosen],
            advantages=advantage[chosen],
            groups=groups[chosen],
            max_completion_tokens=40,
        )
        (derivatives[chosen],) = torch.autograd.grad(policy_loss(objective, batch).value, logp)
    rates = np.array(
        [np.mean([row["correct"] for row in rows if row["problem_id"] == f"p{group}"]) for group in groups]
    )
    sizes = derivatives.abs().sum(1).numpy()
    expected = np.array([sizes[bin_of(rates) == place].sum() for place in range(len(BINS))]) / sizes.sum()
    assert found is not None
    np.testing.assert_allclose(found.share, expected, rtol=1e-4, atol=1e-6)
    assert np.count_nonzero(expected) >= 2


def test_where_no_tokens_were_recorded_weights_are_those_of_the_aggregation_all_the_same(tmp_path):
    rollouts = [*(rollout(1, "half", right, 10) for right in (True, False)), *(rollout(1, "none", False, 30),) * 2]
    steps = [
        {
            "step": 1,
            "generated_tokens": 80,
            "adv/abs_mean_at_rate_0": 1.0,
            "adv/abs_mean_at_rate_below_three_quarters": 1.0,
        }
    ]
    shares = {}
    for aggregation in ("token_mean", "seq_mean_token_mean"):
        found = difficulty(measurement_with(tmp_path / aggregation, rollouts, steps, aggregation=aggregation))
        assert found is not None
        shares[aggregation] = found.share[0]
    assert shares == pytest.approx({"token_mean": 60 / 80, "seq_mean_token_mean": 2 / 4})


def test_an_objective_without_an_aggregation_has_no_share(tmp_path):
    steps = [{"step": 1, "generated_tokens": 7, "adv/abs_mean_at_rate_1": 1.0}]
    found = difficulty(measurement_with(tmp_path, [rollout(1, "a", True, 7)], steps, aggregation=None))
    assert found is not None and np.isnan(found.share).all() and found.advantage[-1] == 1
