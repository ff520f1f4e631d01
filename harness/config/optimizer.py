"""The section `train.optimizer` of a run spec: the rule that turns gradients into weight updates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.settings import Settings
from harness.settings.marks import YOUNGER

_BETA1 = "decay of the running mean of gradients"
_BETA2 = "decay of the running mean of squared gradients"
_EPS = "added to the root of the mean of squared gradients"


class AdamW(Settings):
    """Adam with decoupled weight decay (Loshchilov and Hutter 1711.05101)."""

    type: Literal["adamw"] = "adamw"
    beta1: Annotated[float, YOUNGER] = Field(0.9, ge=0, lt=1, description=_BETA1)
    beta2: Annotated[float, YOUNGER] = Field(0.999, ge=0, lt=1, description=_BETA2)
    eps: Annotated[float, YOUNGER] = Field(1e-8, gt=0, description=_EPS)


class Sgd(Settings):
    """Stochastic gradient descent with momentum. Weight decay is added to the gradient."""

    type: Literal["sgd"] = "sgd"
    momentum: float = Field(
        0.9, ge=0, lt=1, description=("decay of the running sum of gradients; 0 = plain gradient descent")
    )


class Muon(Settings):
    """Orthogonalised momentum for the matrices of layers, at AdamW's scale (Jordan 2024; Liu et al. 2502.16982).

    Embeddings, the output head, norms and biases are trained with AdamW.
    """

    type: Literal["muon"] = "muon"
    momentum: float = Field(0.95, ge=0, lt=1, description="decay of the running mean of a matrix's gradients")
    beta1: Annotated[float, YOUNGER] = Field(0.9, ge=0, lt=1, description=_BETA1)
    beta2: Annotated[float, YOUNGER] = Field(0.999, ge=0, lt=1, description=_BETA2)
    eps: Annotated[float, YOUNGER] = Field(1e-8, gt=0, description=_EPS)


Optimizer = Annotated[AdamW | Sgd | Muon, Field(discriminator="type")]
