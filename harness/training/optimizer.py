"""Optimiser steps: splits of a batch into mini-batches and into passes that fit in memory, and the optimiser itself.

The optimiser updates named groups of weights at the run's learning rate, and clips the gradient of each group
separately. Weights of lower precision than float32 have float32 masters, which are optimised in their place, because
most updates are smaller than half the distance to the next bfloat16 and would be rounded away. Gradients are also
summed over micro-batches in float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from algorithms import Objective
from harness.config.run_spec import RunSpec
from harness.config.train import TrainSpec
from harness.errors import RefusedError
from harness.processes import Processes
from harness.random_keys import permutation, random_key
from harness.training.split import is_master, part_like
from harness.training.states import OptimizerState
from harness.training.torch_optimizers import torch_optimizers

T = TypeVar("T")


class DivergedError(Exception):
    """Loss, gradient or weights are no longer finite. This is a result, not a fault: the cell is scored and flagged."""


class OptimizerStep(NamedTuple):
    """The measurements of one optimiser step."""

    loss: float
    grad_norms: dict[str, float]
    """Group -> norm of its gradient before clipping."""


class ClippedOptimizer:
    """Optimises groups of weights (name -> weights) as `train.optimizer` says. Frozen weights are left out.

    A weight of lower precision than float32 always equals its master, rounded. The master starts at the weight's value.
    The weight's `grad` is float32.
    """

    def __init__(
        self,
        train: TrainSpec,
        groups: Mapping[str, Iterable[nn.Parameter]],
        matrices: Iterable[nn.Parameter] = (),
    ) -> None:
        """Create masters and optimisers.

        matrices: the weights that Muon updates (see `layer_matrices`). AdamW updates the others.
        """
        self._train = train
        self._rounded: list[Tensor] = []
        self._masters: list[Tensor] = []
        of_layers = {id(weight) for weight in matrices}
        self._matrices: set[int] = set()
        self._groups: dict[str, list[nn.Parameter]] = {}
        for name, weights in groups.items():
            trained = [weight for weight in weights if weight.requires_grad]
            self._groups[name] = [self._optimised(weight) for weight in trained]
            chosen = (own for weight, own in zip(trained, self._groups[name], strict=True) if id(weight) in of_layers)
            self._matrices.update(map(id, chosen))
        self._optimizers = torch_optimizers(self._train, [*self._groups.values()], self._matrices)
        # Gradients are never None, because optimisers skip weights without one. Otherwise, a step without any gradient
        # would differ between a process that has already trained and one that has just resumed.
        for weights in self._groups.values():
            for weight in weights:
                weight.grad = torch.zeros_like(weight)
        for rounded, master in zip(self._rounded, self._masters, strict=True):
            # torch refuses a new `grad_dtype` while there is a gradient of another dtype.
            rounded.grad = None
            rounded.grad_dtype = torch.float32
            # Both share one tensor, which the backward pass adds to and the optimiser reads.
            rounded.grad = master.grad

    def begin(self, step: int, **factors: float) -> dict[str, float]:
        """Prepare for batch `step` (from 1) and return each group's learning rate.

        factors: group -> factor on the scheduled rate; default: 1.
        """
        if self._train.optimizer_reset == "per_rollout":
            self._optimizers = torch_optimizers(self._train, [*self._groups.values()], self._matrices)
        scheduled = self._train.learning_rate * schedule(step, self._train)
        rates = {name: scheduled * factors.get(name, 1.0) for name in self._groups}
        for optimizer in self._optimizers:
            # Every optimiser has all groups in the same order, even if a group has no weights in it.
            for group, rate in zip(optimizer.param_groups, rates.values(), strict=True):
                group["lr"] = rate
        return rates

    def zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=False)

    def step(self, loss: float) -> OptimizerStep:
        """Clip each group's gradient to train.max_grad_norm and update the weights.

        loss: the loss of these gradients. If there are several processes, losses and gradients are first summed over
        them.
        Raises DivergedError, without changing any weight, if the loss or a norm is not finite.
        """
        loss = Processes.here().sum(loss)
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss}")
        # All norms are checked before any weight changes, so a diverged step keeps the weights of the previous step.
        clip, most = Processes.here().clip_gradient, self._train.max_grad_norm
        norms = {name: clip(weights, most) for name, weights in self._groups.items()}
        for name, norm in norms.items():
            if not math.isfinite(norm):
                raise DivergedError(f"the norm of the {name}'s gradient is {norm}")
        for optimizer in self._optimizers:
            optimizer.step()
        # A fused optimiser writes to weights without incrementing their version, which `weight_version` relies on.
        increment_version(weight for weights in self._groups.values() for weight in weights)
        if self._masters:
            with torch.no_grad():
                torch._foreach_copy_(self._rounded, self._masters)
        return OptimizerStep(loss, norms)

    def state_dict(self) -> OptimizerState:
        """Return the state of AdamW, that of Muon under `matrices`, and the masters in the order of their weights."""
        first, *others = [optimizer.state_dict() for optimizer in self._optimizers]
        masters = [master.detach() for master in self._every_master()]
        state: OptimizerState = {"state": first["state"], "param_groups": first["param_groups"], "masters": masters}
        if others:
            state["matrices"] = {"state": others[0]["state"], "param_groups": others[0]["param_groups"]}
        return state

    def load_state_dict(self, state: OptimizerState) -> None:
        """Restore the optimisers and the masters. The weights themselves are loaded elsewhere."""
        states = [state, *([state["matrices"]] if "matrices" in state else [])]
        for optimizer, own in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict({name: own[name] for name in ("state", "param_groups")})
            for weight, moments in optimizer.state.items():
                # Only tensors with the weight's shape are split. Scalars such as the step count are the same in every
                # process.
                moments |= {
                    name: part_like(weight, value) for name, value in moments.items() if value.shape == weight.shape
                }
        with torch.no_grad():
            for master, saved in zip(self._every_master(), state["masters"], strict=True):
                master.copy_(part_like(master, saved))

    def _every_master(self) -> list[Tensor]:
        """Return the masters in the order of the weights. Weights that are split are their own masters."""
        weights = (weight for weights in self._groups.values() for weight in weights)
        return self._masters or [weight for weight in weights if is_master(weight)]

    def _optimised(self, weight: nn.Parameter) -> nn.Parameter:
        """Return the tensor to optimise in place of this weight: the weight itself, or a new float32 master."""
        if torch.finfo(weight.dtype).bits >= 32:
            return weight
        master = nn.Parameter(weight.detach().float())
        self._rounded.append(weight)
        self._masters.append(master)
        return master


def summed(losses: Sequence[Tensor]) -> float:
    """Return the sum of scalars on one device. The host waits for the device only once."""
    return float(sum(torch.stack([loss.detach() for loss in losses]).tolist())) if losses else 0.0


def schedule(step: int, train: TrainSpec) -> float:
    """Return the factor on the learning rate at batch `step` (from 1).

    It rises linearly to 1 during the warm-up. Then it follows `train.lr_schedule`: constant, or a decay that would
    reach 0 one step after the last.
    """
    if step <= train.warmup_steps:
        return step / train.warmup_steps
    decays: dict[str, Callable[[float], float]] = {
        "constant": lambda done: 1.0,
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return decays[train.lr_schedule]((step - 1 - train.warmup_steps) / max(1, train.steps - train.warmup_steps))


def mini_batches(groups: Tensor, spec: RunSpec, step: int, epoch: int) -> list[Tensor]:
    """Return the rows (int64 indices) of each optimiser step of one pass over a batch.

    A group is never split between steps, and all steps have about the same number of groups. If there are several steps
    or passes, each pass has a new order of groups. There are `train.updates_per_rollout` steps, or fewer if there are
    fewer groups than that.

    groups [N]: int64. epoch: the number of the pass.
    """
    names = sorted(set(groups.tolist()))
    if max(spec.train.updates_per_rollout, spec.train.epochs) > 1:
        key = random_key(spec.seed, "shuffle", step=step, example=epoch)
        names = [names[index] for index in permutation(len(names), key)]
    count = min(spec.train.updates_per_rollout, len(names))
    # Edges are rounded multiples of the mean size, so steps differ by at most one group.
    edges = [len(names) * index // count for index in range(count + 1)] if count else []
    return [
        torch.isin(groups, torch.tensor(names[start:end])).nonzero()[:, 0] for start, end in itertools.pairwise(edges)
    ]


def micro_batches(
    rows: Tensor, prompt_tokens: Sequence[int], completion_tokens: Sequence[int], budget_tokens: int
) -> list[Tensor]:
    """Split rows (int64 indices) into padded batches within the budget. A longer row is a batch of its own.

    A batch is as wide as its longest prompt plus its longest completion. Rows are first sorted by length, to reduce
    padding.

    prompt_tokens, completion_tokens [N]: token counts of all rows.
    """
    batches: list[list[int]] = []
    width = 0
    for row in sorted(rows.tolist(), key=lambda row: (completion_tokens[row], prompt_tokens[row])):
        # Rows are sorted, so this row's completion is the longest in the batch.
        widest = max(width, prompt_tokens[row])
        if batches and (len(batches[-1]) + 1) * (widest + completion_tokens[row]) <= budget_tokens:
            batches[-1].append(row)
            width = widest
        else:
            batches.append([row])
            width = prompt_tokens[row]
    return [torch.tensor(batch) for batch in batches]


def grouped_micro_batches(
    rows: Tensor,
    group_of_row: Sequence[int],
    prompt_tokens: Sequence[int],
    completion_tokens: Sequence[int],
    budget_tokens: int,
) -> list[Tensor]:
    """Split rows (int64 indices) into batches, keeping rows with the same prompt together.

    A batch computes each prompt once. Its distinct prompts and its completions are together within the budget, unless a
    single row exceeds it. Batches have about equal sizes. A group is split only if it exceeds the budget alone.

    group_of_row [N]: the number of each row's prompt. prompt_tokens [P], completion_tokens [N]: token counts.
    """
    groups: dict[int, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(group_of_row[row], []).append(row)
    sizes = {
        group: prompt_tokens[group] + sum(completion_tokens[row] for row in members)
        for group, members in groups.items()
    }
    total = sum(sizes.values())
    wanted = total / max(1, math.ceil(total / budget_tokens))
    batches: list[list[int]] = []
    held = math.inf
    for group, members in groups.items():
        # A group joins a batch if the batch stays within the budget, and within the wanted size with half of the group.
        if held + sizes[group] <= budget_tokens and held + sizes[group] / 2 <= wanted:
            batches[-1] += members
            held += sizes[group]
            continue
        # Infinity makes the group's first row start a new batch. If the group continues in further batches, its prompt
        # counts in each of them.
        held = math.inf
        for row in members:
            if held + completion_tokens[row] > budget_tokens:
                batches.append([])
                held = prompt_tokens[group]
            batches[-1].append(row)
            held += completion_tokens[row]
    return [torch.tensor(batch) for batch in batches]


class TokenBudget:
    """The token budget of a pass: `train.micro_batch_tokens`, halved whenever a pass of the cell runs out of memory."""

    def __init__(self, tokens: int, divisible: bool = True) -> None:
        """Start with this budget. divisible: True if the split of rows into passes changes results only by rounding."""
        self.tokens = tokens
        self._divisible = divisible
        self._notes: list[str] = []

    @classmethod
    def of(cls, spec: RunSpec) -> TokenBudget:
        objective = spec.objective
        is_split = isinstance(objective, Objective) and objective.token_weight.depends_on_split
        return cls(spec.train.micro_batch_tokens, divisible=not is_split)

    def run(self, split: Callable[[int], list[Tensor]], work: Callable[[list[Tensor]], T]) -> T:
        """Return work(split(tokens)). If memory runs out, rerun it with half the tokens.

        If memory runs out in one process of the cell, all processes rerun.

        split: returns the micro-batches for a budget.
        work: must not depend on the state that a failed run of it left behind.
        Raises RefusedError if smaller micro-batches are impossible, or would change the objective.
        """
        while True:
            micro_batches = split(self.tokens)
            result: list[T] = []
            reason = None
            try:
                result.append(work(micro_batches))
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0] if str(error) else "out of memory"
            # Outside the handler, because its traceback keeps the tensors of the failed pass alive.
            lower = None if reason is None else self._lower(split, len(micro_batches), reason)
            # Every process must take part in this exchange, even if its pass succeeded.
            wanted = [one for one in Processes.here().everyones(lower) if one is not None]
            if not wanted:
                return result[0]
            self._go_on_with(min(tokens for tokens, _ in wanted), wanted[0][1])
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def notes(self) -> list[str]:
        """Return a message for each halving since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def state_dict(self) -> dict[str, int]:
        return {"micro_batch_tokens": self.tokens}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.tokens = state["micro_batch_tokens"]

    def _lower(self, split: Callable[[int], list[Tensor]], count: int, reason: str) -> tuple[int, str]:
        """Return the largest repeatedly halved budget that gives more micro-batches than `count`, and the reason.

        Raises RefusedError if there is none, if it would change the objective, or if the weights are split.
        """
        if Processes.here().split:
            raise RefusedError("training.out_of_memory_in_split_pass", tokens=self.tokens, reason=reason)
        if not self._divisible:
            raise RefusedError("training.out_of_memory_in_objective", tokens=self.tokens, reason=reason)
        # Rows that are longer than the budget are already batches of their own, so one halving may change nothing.
        tokens = self.tokens // 2
        while tokens > 0 and len(split(tokens)) <= count:
            tokens //= 2
        if tokens == 0:
            raise RefusedError("training.out_of_memory", reason=reason)
        return tokens, reason

    def _go_on_with(self, tokens: int, reason: str) -> None:
        self._notes.append(
            f"out of memory with {self.tokens} tokens per pass ({reason}): going on with {tokens}, which changes "
            "results by no more than rounding"
        )
        self.tokens = tokens
