"""The memory of training besides weights and gradients, from the shape of a model.

It is the optimiser's state, and what a pass keeps. `harness.plan.memory` adds everything up.
"""

from __future__ import annotations

from harness.config.model import Lora
from harness.config.optimizer import AdamW, Muon, Optimizer, Sgd
from harness.config.run_spec import RunSpec
from harness.plan.model_shape import ModelShape

FLOAT32_BYTES = 4


def optimizer_bytes(optimizer: Optimizer, trained: int, width: int, matrices: int) -> int:
    """Return the bytes of the optimiser's state.

    It has moments in float32, and float32 master weights if the weights themselves are narrower (Rajbhandari et al.,
    arXiv:1910.02054, section 3.1). AdamW has two moments. Momentum is one, and plain descent has none.

    trained, matrices: numbers of weights; the second those that Muon moves.
    """
    masters = FLOAT32_BYTES * trained if width < FLOAT32_BYTES else 0
    match optimizer:
        case Sgd(momentum=momentum):
            moments = trained if momentum > 0 else 0
        case Muon():
            # Muon keeps one moment of the matrices, and AdamW's two of all other weights.
            moments = 2 * trained - matrices
        case AdamW():
            moments = 2 * trained
    return FLOAT32_BYTES * moments + masters


def matrices_of(spec: RunSpec, shape: ModelShape) -> int:
    """Return how many trained weights lie in the matrices of layers; with adapters, all of theirs."""
    lora = spec.model.lora
    return shape.adapter_parameters(lora) if isinstance(lora, Lora) else shape.layers * shape.layer_matrices


def gathered_bytes(shape: ModelShape, width: int) -> float:
    """Return the bytes of what a pass gathers if weights are split.

    It holds two layers, of which one arrives while the other is computed, and the weights outside of layers. It also
    holds the gradients of one layer and of these weights, in float32 while they are summed.
    """
    outside = shape.parameters - shape.layers * shape.layer_parameters
    return (2 * shape.layer_parameters + outside) * width + (shape.layer_parameters + outside) * FLOAT32_BYTES


def activation_bytes(shape: ModelShape, tokens: int, width: int, checkpointing: bool) -> float:
    """Return the bytes that a forward pass over so many tokens keeps for its backward pass.

    For each token a layer keeps:

    * of each norm its input in float32, the normalised values and the output;
    * queries, keys and values twice, as they are made and as attention takes them;
    * the attention's output twice, as it is made and as the next product takes it;
    * of the gated MLP both branches, the activated one and their product.

    Attention itself keeps nothing of the size tokens x tokens (Dao et al., arXiv:2205.14135). The account is that of
    Korthikanti et al. (arXiv:2205.05198, section 4.1), for layers of this kind.

    checkpointing: a layer then keeps only its input, and one layer at a time is computed again.

    The result is within a fifth of what autograd keeps in this project's training pass. That was measured on a CPU for
    small models of the architectures llama, qwen2, qwen3 and gemma3, in float32 and bfloat16. Layers that are computed
    in blocks (`harness.models.blocks`, on a CPU only) keep about half of it.
    """
    normalised = shape.layer_norms * shape.hidden + (shape.attention + shape.key_value if shape.qk_norm else 0)
    norms = normalised * (FLOAT32_BYTES + 2 * width)
    products = width * (4 * shape.attention + 4 * shape.key_value + 4 * shape.intermediate)
    layer = norms + products
    kept = shape.layers * width * shape.hidden + layer if checkpointing else shape.layers * layer
    # Embeddings, the last norm, and the states that tokens are predicted from.
    ends = shape.hidden * (FLOAT32_BYTES + 4 * width)
    return tokens * (kept + ends)


def logits_bytes(shape: ModelShape, chunk_tokens: int, width: int) -> int:
    """Return the bytes of one chunk of logits in the backward pass.

    The chunk exists as the product, in float32, as log-probs and as their gradient.
    """
    return chunk_tokens * shape.vocabulary * (3 * FLOAT32_BYTES + width)
