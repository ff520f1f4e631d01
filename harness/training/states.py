"""The types of a checkpoint's contents other than the policy's weights. torch and JSON store them as plain dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class OrderState(TypedDict, total=False):
    """The state of a prompt order. It is empty for an order that does not depend on rewards."""

    successes: dict[str, float]
    visits: dict[str, int]
    retired: list[str]
    order: OrderState
    """The state of the inner order, if prompts retire."""


class LimitState(TypedDict):
    """The state of a completion limit."""

    tokens: int
    recent_rewards: list[float]


class CellProgress(TypedDict, total=False):
    """The progress of a cell, as JSON. A learner without prompts has no order and no limit."""

    generated_tokens: int
    teacher_tokens: int
    trained_tokens: int
    order: OrderState
    limit: LimitState
    past_weights: dict[str, str]
    """Step -> checksum of the past weights that later steps sample from."""


class OptimizerState(TypedDict, total=False):
    """The state of a `ClippedOptimizer`. The first two fields are those of torch's state dict."""

    state: dict[int, dict[str, Tensor]]
    param_groups: list[dict[str, object]]
    masters: list[Tensor]
    matrices: OptimizerState
    """The state of Muon, without masters."""


class UpdateState(TypedDict, total=False):
    """The state of a policy update or a preference update. A preference update has only `optimizer` and `budget`."""

    optimizer: OptimizerState
    critic: dict[str, Tensor]
    reference: dict[str, Tensor]
    coefficients: dict[str, float]
    budget: dict[str, int]


class TrainerState(UpdateState, total=False):
    """The state of a learner. With a fixed set of pairs it has the update's own fields, and otherwise `update`."""

    update: UpdateState
    round: dict[str, Tensor]
    under_way: list[dict[str, Any]]
    """The fields of each `harness.run.learning.slices.Begun`."""
