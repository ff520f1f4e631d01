"""Weights that are split over the processes of a cell (`train.sharding: fully`).

Each process has a part of every weight, of its gradient and of its optimiser state. FSDP2 gathers a layer when a pass
needs it (Zhao et al. 2304.11277), so all processes must run the same number of passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.config.train import TrainSpec
from harness.processes import Processes, gathered, is_part
from harness.training.prefix_attention import shares_prompts
from harness.training.token_scores import output_head


class _Root(nn.Module):
    """The root module for FSDP2, through which every pass goes.

    FSDP2 needs a single root, but our passes call the decoder and read the weights of the output head. `dtype` is the
    dtype of passes.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.dtype = model.dtype

    def forward(self, work: Callable[[], object]) -> object:
        return work()


_masters: set[int] = set()
"""Ids of all split weights that are float32 masters."""


def split_for_training(train: TrainSpec, *models: PreTrainedModel | None, head: nn.Module | None = None) -> None:
    """Split the weights of models, and of the critic's head, if the spec says so.

    A model may be passed more than once.
    """
    if train.sharding == "rows" or Processes.here().size == 1:
        return
    for model in models:
        if model is not None:
            split_weights(model)
    if head is not None:
        _fully_shard(head, next(head.parameters()).dtype, reshard_after_forward=True)


def split_weights(model: PreTrainedModel) -> None:
    """Keep only this process's part of each weight of a model, in place.

    Trained weights become float32 masters, which are rounded to the model's dtype for each pass. All processes must
    call this together.
    """
    processes = Processes.here()
    if model in processes.split:
        return
    # Both functions probe the model with a forward pass, which is impossible once the weights are split. They cache
    # their results.
    shares_prompts(model.get_decoder())
    output_head(model)
    root = _Root(model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    layers = [module for module in model.get_decoder().modules() if isinstance(module, GradientCheckpointingLayer)]
    # FSDP2 needs children before their parents. The root takes all weights outside the layers.
    for module in (*layers, root):
        _fully_shard(module, root.dtype)
    if root.dtype != torch.float32:
        # This comes after the split, which replaces the parameters.
        _masters.update(map(id, model.parameters()))
    processes.split[model] = root


def _fully_shard(module: nn.Module, dtype: torch.dtype, reshard_after_forward: bool | None = None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(next(module.parameters()).device.type, (Processes.here().size,))
    # Gradients are reduced in float32, because sums in half precision would lose small gradients.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    assert isinstance(module, FSDPModule)
    # Gradients are summed, not averaged, because the denominators of losses count over the complete step. The factor
    # must be set on every module. If it were set only on the root, the layers would still average.
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def is_master(weight: Tensor) -> bool:
    """Return whether a split weight is a float32 master, which passes round to the model's dtype."""
    return id(weight) in _masters


@torch.no_grad()
def gather_into(model: PreTrainedModel, split: PreTrainedModel) -> None:
    """Copy the trained weights of a split model into an unsplit model. All processes must call this together."""
    whole_weights = dict(model.named_parameters())
    for name, weight in split.named_parameters():
        if weight.requires_grad:
            whole_weights[name].copy_(gathered(weight))


@torch.no_grad()
def scatter_into(split: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy the weights of an unsplit model into a split model."""
    split.load_state_dict(parts_of(split, model.state_dict()))


def whole(value: Tensor) -> Tensor:
    """Gather a split tensor; a tensor that is not split is returned unchanged.

    Rank 0 gets all of it, on the host; other ranks get back their own part. All processes must call this together.
    """
    if not is_part(value):
        return value
    # Every rank must take part in the gathering, even if it does not keep the result.
    found = gathered(value)
    return found.cpu() if Processes.here().is_first else value


def part_like(own: Tensor, value: Tensor) -> Tensor:
    """Return this process's part of an unsplit tensor, split in the same way as `own`."""
    if not is_part(own) or is_part(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    # There is no source rank, because every process has the complete value. So nothing is sent.
    value = value.to(own.device, own.dtype)
    return distribute_tensor(value, own.device_mesh, own.placements, src_data_rank=None)  # type: ignore[attr-defined]


def parts_of(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this process's part of an unsplit module's state dict."""
    own = module.state_dict()
    return {name: part_like(own.get(name, value), value) for name, value in state.items()}
