"""The types of what a checkpoint holds besides the policy's weights. torch and JSON keep them as plain dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class OrderState(TypedDict, total=False):
    """The state of a prompt order; an order that learns nothing from the rewards has none."""

    successes: dict[str, float]
    visits: dict[str, int]
    retired: list[str]
    order: OrderState
    """The state of the order whose prompts retire."""


class LimitState(TypedDict):
    """The state of a completion limit."""

    tokens: int
    recent_rewards: list[float]


class Progress(TypedDict, total=False):
    """How far a cell has got, as JSON. A learner without prompts has no order and no limit."""

    generated_tokens: int
    teacher_tokens: int
    trained_tokens: int
    order: OrderState
    limit: LimitState
    past_weights: dict[str, str]
    """The checksums of past weights that are sampled from, by their step."""


class TorchState(TypedDict):
    """The state of one of torch's optimisers."""

    state: dict[int, dict[str, Tensor]]
    param_groups: list[dict[str, object]]


class OptimizerState(TorchState, total=False):
    """The state of a `ClippedOptimizer`."""

    masters: list[Tensor]
    matrices: TorchState
    """Muon's."""


class UpdateState(TypedDict, total=False):
    """The state of a policy update or a preference update; the latter has an optimiser and a budget only."""

    optimizer: OptimizerState
    critic: dict[str, Tensor]
    reference: dict[str, Tensor]
    coefficients: dict[str, float]
    budget: dict[str, int]


class CompletionState(TypedDict):
    """A completion under way, as `harness.run.learning.slices.Begun`; its prompt is encoded again."""

    step: int
    example: int
    sample: int
    problem: str
    tokens: list[int]
    logps: list[float]
    weights_steps: list[int]
    ended: bool


class TrainerState(UpdateState, total=False):
    """The state of a learner: with a fixed set of pairs that of its update, otherwise with the update apart."""

    update: UpdateState
    round: dict[str, Tensor]
    under_way: list[CompletionState]
