"""How the processes of a cell split a training step: each computes a share of the rows and, if wanted, holds a part of
the weights.

Rows: all processes know the whole batch, and each passes over its share of the rows. Denominators are those of the
whole step, so gradients and losses of the shares add up to those of one process, up to rounding.

Weights (`train.sharding: fully`): FSDP2 keeps a part of each weight, of its gradient and of the optimiser's state in
each process, and gathers a layer when a pass needs it (Zhao et al. 2304.11277). All processes must then make equally
many passes: one with fewer micro-batches than another repeats some of the other's, for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.config.run_spec import TrainSpec
from harness.processes import Processes

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """Some rows of a batch (int64 indices), and which of them each process computes."""

    of_process: list[Tensor]

    @classmethod
    def of(cls, rows: Tensor, tokens: Tensor, divisible: bool = True) -> Share:
        """Consecutive rows for each process, with about equally many tokens. tokens [N]: of all rows of the batch.
        Not divisible: the first process computes all."""
        size = Processes.here().size
        if size == 1:
            return cls([rows])
        if not divisible:
            return cls([rows, *[rows[:0]] * (size - 1)])
        ends = tokens[rows].double().cumsum(0)
        middles = ends - tokens[rows] / 2
        process = (middles * size / ends[-1:]).long().clamp(max=size - 1)
        return cls([rows[process == rank] for rank in range(size)])

    @property
    def own(self) -> Tensor:
        """The rows of this process."""
        return self.of_process[Processes.here().rank] if len(self.of_process) > 1 else self.of_process[0]

    def micro_batches(self, split: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
        """The own rows in micro-batches, as `split` makes them; then, where weights are split, as many of another
        process as it has more."""
        own = split(self.own)
        if not weights_are_split() or len(self.of_process) == 1:
            return own
        longest = max(map(split, self.of_process), key=len)
        return own + longest[len(own) :]

    def has(self, micro: Tensor) -> bool:
        """Whether a micro-batch is of own rows; another process counts the others."""
        return len(self.of_process) == 1 or bool(torch.isin(micro[:1], self.own))

    def counted(self, loss: Tensor, micro: Tensor) -> Tensor:
        """The loss of a micro-batch, or 0 with a gradient of 0 where another process counts it."""
        return loss if self.has(micro) else 0 * loss

    def exchange_(self, *tensors: Tensor) -> None:
        """Complete tensors [N, ...] on the host, in which each process has computed its own rows: with what the others
        have computed."""
        if len(self.of_process) == 1:
            return
        every = torch.cat(self.of_process)
        others = torch.cat([rows for rank, rows in enumerate(self.of_process) if rank != Processes.here().rank])
        for tensor in tensors:
            tensor[others] = 0
            part = tensor[every]
            Processes.here().sum_([part])
            tensor[every] = part


class _Root(nn.Module):
    """Through which every pass over a model enters FSDP2, which wants a single root: our passes call the decoder, and
    read the output head's weights. dtype: that of passes."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.dtype = model.dtype

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


_roots: WeakKeyDictionary[nn.Module, _Root] = WeakKeyDictionary()
_masters: set[int] = set()


def split_for_training(train: TrainSpec, *models: PreTrainedModel | None) -> None:
    """Split the weights of models as the spec says; the same model may be given twice."""
    if train.sharding == "fully" and Processes.here().size > 1:
        for model in models:
            if model is not None:
                split_weights(model)


def split_weights(model: PreTrainedModel) -> None:
    """Leave only a part of each of the model's weights in this process, in place. What is trained becomes float32,
    which the optimiser moves, and is rounded to the model's dtype for each pass. All processes must call it alike."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    from harness.training.prefix_attention import shares_prompts
    from harness.training.token_scores import output_head

    if model in _roots:
        return
    # Both find out by a pass of their own, which is not possible any more once the weights are split.
    shares_prompts(model.get_decoder())
    output_head(model)
    root = _Root(model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    mesh = init_device_mesh(model.device.type, (Processes.here().size,))
    policy = MixedPrecisionPolicy(param_dtype=root.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    layers = [module for module in model.get_decoder().modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, root):
        fully_shard(module, mesh=mesh, mp_policy=policy)
        assert isinstance(module, FSDPModule)
        # Gradients are sums, as losses have the denominators of the whole step. A factor of the root alone would leave
        # means in the layers.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    if root.dtype != torch.float32:
        _masters.update(map(id, model.parameters()))
    _roots[model] = root


def weights_are_split() -> bool:
    """Whether this process holds only a part of some model's weights."""
    return bool(_roots)


def is_master(weight: Tensor) -> bool:
    """Whether a split weight is the float32 master of one that passes see rounded."""
    return id(weight) in _masters


def passing(model: nn.Module, work: Callable[[], T]) -> T:
    """work(), which passes over a model, whose weights are gathered for it where they are split."""
    root = _roots.get(model)
    if root is None:
        return work()
    root.reshard()  # type: ignore[operator]  # what was gathered before the optimiser moved the weights is stale
    result: T = root(work)
    return result


@torch.no_grad()
def gather_into(model: PreTrainedModel, split: PreTrainedModel) -> None:
    """Give a whole model the weights that are trained in a split one of its architecture. All processes must call it
    alike."""
    whole_weights = dict(model.named_parameters())
    for name, weight in split.named_parameters():
        if weight.requires_grad:
            whole_weights[name].copy_(_gathered(weight))


@torch.no_grad()
def scatter_into(split: PreTrainedModel, model: PreTrainedModel) -> None:
    """Give a split model the weights of a whole one."""
    split.load_state_dict(parts_of(split, model.state_dict()))


def whole(value: Tensor) -> Tensor:
    """A tensor of which each process may hold a part: on the host, in the first process. All must call it alike."""
    if not _is_part(value):
        return value
    gathered = _gathered(value)
    return gathered.cpu() if Processes.here().is_first else value


def part_like(own: Tensor, value: Tensor) -> Tensor:
    """What this process holds of a whole tensor, if it holds it as it does another of its shape."""
    if not _is_part(own) or _is_part(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Without a source: every process has the whole value, so nothing is sent.
    value = value.to(own.device, own.dtype)
    return distribute_tensor(value, own.device_mesh, own.placements, src_data_rank=None)  # type: ignore[attr-defined]


def parts_of(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What this process holds of a whole module's state."""
    own = module.state_dict()
    return {name: part_like(own.get(name, value), value) for name, value in state.items()}


def _is_part(value: Tensor) -> bool:
    return hasattr(value, "full_tensor")


def _gathered(value: Tensor) -> Tensor:
    gathered: Tensor = value.full_tensor()  # type: ignore[attr-defined]
    return gathered


def clip_gradient(weights: Sequence[nn.Parameter], max_norm: float) -> float:
    """Scale the gradient of weights, whose shares are added up, down to a norm. Returns its norm before."""
    split = [weight for weight in weights if _is_part(weight)]
    if not split:
        return float(clip_grad_norm_(weights, max_norm))
    others = [weight for weight in weights if not _is_part(weight)]
    norms = [_gathered(get_total_norm([w.grad for w in split if w.grad is not None]))]
    if others:
        norms.append(get_total_norm([w.grad for w in others if w.grad is not None]))
    norm = torch.stack(norms).norm()
    for part in (split, others):
        clip_grads_with_norm_(part, max_norm, norm)
    return float(norm)


def add_up_gradients(weights: Iterable[nn.Parameter]) -> None:
    """Add up what the processes have computed on their rows. FSDP2 has done so for weights that are split."""
    Processes.here().sum_([w.grad for w in weights if w.grad is not None and not _is_part(w)])
