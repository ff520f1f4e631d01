"""The torch optimisers behind `train.optimizer`, and the weights that each of them updates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from harness.config.optimizer import AdamW, Muon, Sgd
from harness.config.train import TrainSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Groups = Sequence[Sequence[Tensor]]


def torch_optimizers(train: TrainSpec, groups: Groups, matrices: Collection[int]) -> list[torch.optim.Optimizer]:
    """Create the optimisers for groups of weights. Each optimiser has all groups in this order, some possibly empty.

    matrices: ids of the weights that Muon updates. AdamW updates the others.
    """
    rate, decay = train.learning_rate, train.weight_decay
    match train.optimizer:
        case Sgd(momentum=momentum):
            return [torch.optim.SGD(_parameters(groups), lr=rate, momentum=momentum, weight_decay=decay)]
        case AdamW() as chosen:
            return [_adamw(train, chosen, groups)]
        case Muon() as chosen:
            muon = torch.optim.Muon(
                _parameters([[one for one in weights if id(one) in matrices] for weights in groups]),
                lr=rate,
                weight_decay=decay,
                momentum=chosen.momentum,
                # Makes steps as large as AdamW's, so that both can use one learning rate and decay (2502.16982).
                adjust_lr_fn="match_rms_adamw",
            )
            others = [[one for one in weights if id(one) not in matrices] for weights in groups]
            return [_adamw(train, chosen, others), muon]


def _adamw(train: TrainSpec, chosen: AdamW | Muon, groups: Groups) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        _parameters(groups),
        lr=train.learning_rate,
        betas=(chosen.beta1, chosen.beta2),
        eps=chosen.eps,
        weight_decay=train.weight_decay,
        fused=True,
    )


def _parameters(groups: Groups) -> list[dict[str, Sequence[Tensor]]]:
    return [{"params": weights} for weights in groups]


def layer_matrices(*models: PreTrainedModel | None) -> list[nn.Parameter]:
    """Return the models' 2-D weights, including adapters, except embeddings and output heads."""
    found = []
    for model in models:
        if model is None:
            continue
        ends = [model.get_output_embeddings(), *(one for one in model.modules() if isinstance(one, nn.Embedding))]
        outside = {id(weight) for module in ends for weight in module.parameters()}
        found += [weight for weight in model.parameters() if weight.ndim == 2 and id(weight) not in outside]
    return found
