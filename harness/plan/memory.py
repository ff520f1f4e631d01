"""An estimate of a cell's memory, from its spec and the model's configuration, before anything runs.

Some parts are held from the first step to the last: weights, copies, gradients, the optimiser. Others exist only in one
phase: while the cell samples, trains or saves a checkpoint. The estimate is the sum of the former plus that of the
largest phase, with each part at its largest. A cell that evaluates a checkpoint only holds weights and samples. The
length of prompts is assumed, see `row_tokens`.

`benchmarks/memory.py` compares the estimate with measurements.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from algorithms import Objective
from harness.config.engine import ENGINES, Device, DrawingLoad, EngineMemory, engine_on
from harness.config.model import Lora
from harness.config.optimizer import AdamW, Muon, Optimizer, Sgd
from harness.config.run_spec import RunSpec
from harness.config.trainer import BENCH
from harness.executors.slots import Slot
from harness.plan.model_shape import ModelShape, find_shape

GIB = 2**30
FLOAT32_BYTES = 4
PROMPT_TOKENS = 256
PROMPT_CONTEXT_FRAC = 0.25
"""If the context is small, a prompt is assumed to fill at most this fraction of it."""

# The memory of the process itself, whatever the model. On a CPU this is Python, torch, transformers and pyarrow. On
# CUDA it is the context and the libraries' kernels, which was not measured.
PROCESS_BYTES = {"cpu": 0.5 * GIB, "cuda": 0.5 * GIB}

# safetensors copies each weight into bytes, and then all of them into the bytes of one file.
COPIES_IN_SAVING = 2

# The number of samples in one batch of an evaluation (harness.sampling.evaluation).
EVALUATED_AT_ONCE = 1024


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of a cell, or of each of its processes."""

    device: Device
    parameters: int
    trained_parameters: int
    held_bytes: Mapping[str, int]
    """The parts that exist throughout."""
    phases_bytes: Mapping[str, Mapping[str, int]]
    """Maps each phase to the parts that exist only during it."""
    engine_frac: float
    """The fraction of the device's memory that the engine takes in addition, or 0."""
    frac_only_drawing: bool = False
    """True if the engine takes that fraction only while it samples."""
    processes: int = 1

    @property
    def peak_phase(self) -> str:
        """The phase that needs the most memory."""
        return max(self.phases_bytes, key=lambda phase: sum(self.phases_bytes[phase].values()))

    @property
    def parts_bytes(self) -> dict[str, int]:
        """The parts that exist at the peak, with their sizes."""
        return {**self.held_bytes, **self.phases_bytes[self.peak_phase]}

    @property
    def total_bytes(self) -> int:
        """The memory at the peak, without the engine's fraction of a GPU."""
        return sum(self.parts_bytes.values())

    def as_json(self) -> dict[str, object]:
        """Return the estimate as a JSON document, with sizes in GB (1e9 bytes)."""
        return {
            "device": self.device,
            "processes": self.processes,
            "parameters": self.parameters,
            "trained_parameters": self.trained_parameters,
            "gb": self.total_bytes / 1e9,
            "peak_phase": self.peak_phase,
            "parts_gb": {name: size / 1e9 for name, size in self.parts_bytes.items()},
            "vllm_memory_frac": self.engine_frac,
        }

    def needed_bytes(self, device_bytes: int) -> int:
        """Return the bytes needed on a device with this much memory, including the engine's fraction.

        Each process has its own GPU, but all processes share a CPU's memory.
        """
        share_bytes = round(self.engine_frac * device_bytes)
        if self.device == "cpu":
            return self.processes * self.total_bytes
        if not self.frac_only_drawing:
            return self.total_bytes + share_bytes
        # The engine's fraction is free while the cell trains, so only the larger of the two phases counts.
        drawing_bytes = sum((*self.held_bytes.values(), *self.phases_bytes["drawing"].values()))
        return max(self.total_bytes, drawing_bytes + share_bytes)


def estimate_memory(spec: RunSpec, cuda: bool) -> MemoryEstimate | None:
    """Estimate the memory of one cell.

    None if the model's configuration is not on this machine or its architecture is unknown, or if a program of the user
    trains the cell.
    cuda: whether there is a GPU, which decides `train.device: auto`.
    """
    if spec.trainer.type != BENCH and not spec.checkpoint:
        return None
    shape = find_shape(spec.model.source)
    # A cell that evaluates a checkpoint computes no rewards.
    frozen = None if spec.checkpoint else spec.reward.generator
    generator = None if frozen is None else find_shape(frozen)
    if shape is None or (frozen is not None and generator is None):
        return None
    device: Device = "cuda" if spec.train.device.startswith("cuda") or (spec.train.device == "auto" and cuda) else "cpu"
    width = _element_bytes(spec, device)
    lora = spec.model.lora
    trained = shape.adapter_parameters(lora) if isinstance(lora, Lora) else shape.parameters
    total = shape.parameters + (trained if isinstance(lora, Lora) else 0)
    # A critic's own trunk is trained like the policy: if the policy has adapters, only the trunk's adapters are
    # trained.
    trains = spec.checkpoint is None
    trunks = 2 if trains and _critic_has_own_trunk(spec) else 1
    processes = spec.train.processes if trains else 1
    split = processes if spec.train.sharding == "fully" else 1
    held: dict[str, float] = {
        "process": PROCESS_BYTES[device],
        "weights": trunks * total * width,
        "copies": copies(spec, device) * shape.parameters * width,
    }
    sources = {judge.file.source for judge in spec.judges if judge.file.source is not None}
    if grading := [found.parameters for source in sources if (found := find_shape(source)) is not None]:
        # Only one grader's model is loaded at a time.
        held["grader"] = FLOAT32_BYTES * max(grading)
    teacher = _teacher_shape(spec)
    # If the teacher has its own weights but its shape is unknown, the estimate would be too low.
    if teacher is None and _has_teacher(spec):
        return None
    drawn_width = _drawn_width(spec, width)
    if spec.rollout.dtype != "trainer":
        held["rollout_copy"] = shape.parameters * drawn_width
    if teacher is not None:
        held["teacher"] = teacher.parameters * width / (split if spec.distils != "none" else 1)
    # Every model that writes completions has its own engine.
    writers = [shape, *([teacher or shape] if trains and spec.rollout.sampler == "teacher" else [])]
    backend = ENGINES.find(engine_on(device, spec.rollout.engine))
    engine = _together([backend.memory(drawing_load(spec, writer, drawn_width, device)) for writer in writers])
    head = (
        {"float32_head": FLOAT32_BYTES * shape.vocabulary * shape.hidden} if spec.model.head_dtype == "float32" else {}
    )
    phases: dict[str, Mapping[str, float]] = {"drawing": {**engine.drawing_bytes, **head}}
    if trains:
        optimizer = trunks * optimizer_bytes(spec.train.optimizer, trained, width, matrices_of(spec, shape))
        held |= {"gradients": FLOAT32_BYTES * trunks * trained / split, "optimizer": optimizer / split}
        if split > 1:
            held |= weights_when_split(spec, shape, trained, width, device)
        if generator is not None:
            held["generator"] = generator.parameters * width
        for model in filter(None, (part.held(spec) for part in spec.reward.scored)):
            held[model.name] = (FLOAT32_BYTES if model.in_float32 else width) * shape.parameters
            if model.phase:
                # This model always samples with the torch engine.
                batches = ((model.samples, row_tokens(shape, model.tokens)),)
                asked = replace(drawing_load(spec, shape, width, device), batches=batches)
                sampling = ENGINES.find("torch").memory(asked)
                held[f"{model.name}_kv_cache"] = sum(sampling.parts_bytes.values())
                phases[model.phase] = sampling.drawing_bytes
        tokens = micro_batch_tokens(spec, shape)
        # Only one of each of these exists at a time, so its largest size counts.
        phases["training"] = {
            **head,
            "activations": activation_bytes(shape, tokens, width, spec.train.activation_checkpointing),
            "logits": logits_bytes(shape, spec.train.logits_chunk_tokens, width),
            "attention_mask": tokens * row_tokens(shape, longest_completion_tokens(spec)) * width,
            "gathered_weights": gathered_bytes(shape, width) if split > 1 else 0,
            "teacher_pass": 0 if spec.distils == "none" else teacher_pass_bytes(teacher or shape, spec, tokens, width),
        }
        # On a GPU, the weights are saved from the host's memory.
        if device == "cpu":
            saved = trained if isinstance(lora, Lora) else shape.saved_parameters
            gathered = optimizer if split > 1 else 0
            phases["saving a checkpoint"] = {"checkpoint": gathered + max(COPIES_IN_SAVING * saved * width, optimizer)}
    return MemoryEstimate(
        device,
        shape.parameters,
        trained if trains else 0,
        _whole({**held, **engine.parts_bytes}),
        {phase: _whole(parts) for phase, parts in phases.items()},
        engine.device_frac,
        engine.frac_only_drawing,
        processes,
    )


def shortages(arms: Mapping[str, RunSpec], slots: Sequence[Slot]) -> list[str]:
    """Return a warning if cells may not fit into their slot's share of a GPU. It names the arm that needs the most."""
    known = [slot.memory_bytes * slot.share for slot in slots if slot.memory_bytes is not None]
    if not known:
        return []
    least = round(min(known))
    estimates = {arm: estimate_memory(spec, cuda=True) for arm, spec in arms.items()}
    needed = {arm: one.needed_bytes(least) for arm, one in estimates.items() if one and one.needed_bytes(least) > least}
    if not needed:
        return []
    arm = max(needed, key=lambda arm: needed[arm])
    return [
        f"a cell of {arm} needs about {needed[arm] / 1e9:.1f} GB, but the smallest slot has {least / 1e9:.1f} GB of "
        "GPU memory: it may run out of memory. Use fewer --workers, or see the guide on fitting the memory."
    ]


def _whole(parts: Mapping[str, float]) -> dict[str, int]:
    """Return the sizes rounded to bytes, without parts of size 0."""
    return {name: round(size) for name, size in parts.items() if size}


def in_words(memory: MemoryEstimate | None) -> str:
    """Return the estimate in words, to end a sentence. The largest parts come first."""
    if memory is None:
        return "unknown, the model's size is not at hand"
    parts = sorted(((name, size / 1e9) for name, size in memory.parts_bytes.items()), key=lambda part: -part[1])
    listed = ", ".join(f"{name.replace('_', ' ')} {size:.1f}" for name, size in parts if size >= 0.05)
    share = f" and {memory.engine_frac:.0%} of the GPU's memory for the engine" if memory.engine_frac else ""
    most = f"most while {memory.peak_phase} ({listed})"
    each = "per cell" if memory.processes == 1 else f"in each of a cell's {memory.processes} processes"
    return f"about {memory.total_bytes / 1e9:.1f} GB {each} on {memory.device}{share}, {most}"


def weights_when_split(spec: RunSpec, shape: ModelShape, trained: int, width: int, device: Device) -> dict[str, float]:
    """Return the weights that each process holds under `train.sharding: fully`.

    The following are complete in each process: the policy for sampling, the starting weights on a CPU, and merged
    adapters.
    The rest is split. If trained weights are narrower than float32, only the optimiser's master weights exist.
    """
    merged = isinstance(spec.model.lora, Lora)
    trunks = 2 if _critic_has_own_trunk(spec) else 1
    frozen = shape.parameters if merged else 0
    own = frozen + (trained if width == FLOAT32_BYTES else 0)
    whole = (device == "cpu") + merged
    references = (copies(spec, device) - whole) * shape.parameters
    return {
        "weights": (frozen + trained) * width,
        "copies": whole * shape.parameters * width,
        "split_weights": (trunks * own + references) * width / spec.train.processes,
    }


def optimizer_bytes(optimizer: Optimizer, trained: int, width: int, matrices: int) -> int:
    """Return the bytes of the optimiser's state.

    The state consists of moments in float32, and of float32 master weights if the weights are narrower (Rajbhandari et
    al., arXiv:1910.02054, section 3.1). AdamW has two moments, momentum has one, and plain descent has none.
    trained: the number of trained weights.
    matrices: the number of trained weights that Muon updates.
    """
    masters = FLOAT32_BYTES * trained if width < FLOAT32_BYTES else 0
    match optimizer:
        case Sgd(momentum=momentum):
            moments = trained if momentum > 0 else 0
        case Muon():
            # Muon keeps one moment for the matrices. All other weights have AdamW's two moments.
            moments = 2 * trained - matrices
        case AdamW():
            moments = 2 * trained
    return FLOAT32_BYTES * moments + masters


def matrices_of(spec: RunSpec, shape: ModelShape) -> int:
    """Return the number of trained weights in the matrices of layers. All adapter weights count."""
    lora = spec.model.lora
    return shape.adapter_parameters(lora) if isinstance(lora, Lora) else shape.layers * shape.layer_matrices


def gathered_bytes(shape: ModelShape, width: int) -> float:
    """Return the bytes that a pass gathers if the weights are split.

    These are two layers, one being computed and the next arriving, and the weights outside of layers. There are also
    the gradients of one layer and of the outside weights, in float32 while they are summed.
    """
    outside = shape.parameters - shape.layers * shape.layer_parameters
    return (2 * shape.layer_parameters + outside) * width + (shape.layer_parameters + outside) * FLOAT32_BYTES


def activation_bytes(shape: ModelShape, tokens: int, width: int, checkpointing: bool) -> float:
    """Return the bytes that a forward pass over this many tokens keeps for its backward pass.

    For each token, a layer keeps:
    * for each norm: the input in float32, the normalised values and the output;
    * queries, keys and values twice: as computed and as passed to attention;
    * the output of attention twice: as computed and as passed to the next product;
    * for the gated MLP: both branches, the activation and the product of the two.

    Attention itself keeps nothing of size tokens x tokens (Dao et al., arXiv:2205.14135). The account follows
    Korthikanti et al. (arXiv:2205.05198, section 4.1), adapted to these layers.
    checkpointing: if True, a layer keeps only its input, and one layer at a time is recomputed.

    The result is within a fifth of what autograd keeps in this project's training pass. This was measured on a CPU, for
    small models of the architectures llama, qwen2, qwen3 and gemma3, in float32 and bfloat16. Layers that are computed
    in blocks (`harness.models.blocks`, on a CPU only) keep about half as much.
    """
    normalised = shape.layer_norms * shape.hidden + (shape.attention + shape.key_value if shape.qk_norm else 0)
    norms = normalised * (FLOAT32_BYTES + 2 * width)
    products = width * (4 * shape.attention + 4 * shape.key_value + 4 * shape.intermediate)
    layer = norms + products
    kept = shape.layers * width * shape.hidden + layer if checkpointing else shape.layers * layer
    # These are the embeddings, the last norm, and the hidden states from which tokens are predicted.
    ends = shape.hidden * (FLOAT32_BYTES + 4 * width)
    return tokens * (kept + ends)


def logits_bytes(shape: ModelShape, chunk_tokens: int, width: int) -> int:
    """Return the bytes of one chunk of logits in the backward pass.

    The chunk exists four times: as the product, in float32, as log-probs, and as their gradient.
    """
    return chunk_tokens * shape.vocabulary * (3 * FLOAT32_BYTES + width)


def teacher_pass_bytes(shape: ModelShape, spec: RunSpec, tokens: int, width: int) -> float:
    """Return the bytes of a teacher's forward pass over this many tokens, without gradients.

    These are the values of one layer, the final hidden states, and one chunk of logits and log-probs.
    """
    layer = 4 * shape.hidden + 3 * shape.intermediate + 2 * shape.attention + 2 * shape.key_value
    logits = spec.train.logits_chunk_tokens * shape.vocabulary * (2 * FLOAT32_BYTES + width)
    return tokens * (layer + shape.hidden) * width + logits


def drawing_load(spec: RunSpec, shape: ModelShape, width: int, device: Device) -> DrawingLoad:
    """Return what the engine samples in the largest batches of training and evaluation."""
    rollout = spec.rollout
    problems, at_once = spec.eval.problems, EVALUATED_AT_ONCE
    samples = 1 if spec.eval.is_greedy else spec.eval.samples
    evaluated = at_once if problems is None else min(at_once, problems * samples)
    return DrawingLoad(
        device,
        rollout,
        weights_bytes=shape.parameters * width,
        cache_bytes_per_token=2 * shape.layers * shape.key_value * width,
        logits_bytes_per_sample=shape.vocabulary * (FLOAT32_BYTES + width),
        batches=(
            (rollout.prompts_per_step * rollout.samples_per_prompt, row_tokens(shape, rollout.max_completion_tokens)),
            (evaluated, row_tokens(shape, spec.eval.longest_completion_tokens)),
        ),
    )


def row_tokens(shape: ModelShape, completion_tokens: int) -> int:
    """Return the number of tokens of a prompt with its completion, at most the model's context."""
    return min(prompt_tokens(shape) + completion_tokens, shape.context_tokens or sys.maxsize)


def prompt_tokens(shape: ModelShape) -> int:
    """Return the assumed length of a prompt: that of a word problem with instructions, or less in a small context."""
    if shape.context_tokens is None:
        return PROMPT_TOKENS
    return min(PROMPT_TOKENS, round(PROMPT_CONTEXT_FRAC * shape.context_tokens))


def longest_completion_tokens(spec: RunSpec) -> int:
    """Return the length of the longest completion that is trained on."""
    return spec.pairs.max_tokens if spec.pairs.type == "dataset" else spec.rollout.max_completion_tokens


def micro_batch_tokens(spec: RunSpec, shape: ModelShape) -> int:
    """Return the number of tokens in the largest training pass.

    It is the configured number, or a single row if that is longer, but at most the complete batch. A prompt is computed
    once for all its completions.
    """
    if spec.pairs.type == "dataset":
        return max(spec.train.micro_batch_tokens, 2 * spec.pairs.max_tokens)
    rollout = spec.rollout
    row = row_tokens(shape, rollout.max_completion_tokens)
    completions = rollout.samples_per_prompt * (row - prompt_tokens(shape))
    batch = rollout.prompts_per_step * (prompt_tokens(shape) + completions)
    return min(batch, max(row, spec.train.micro_batch_tokens))


def copies(spec: RunSpec, device: Device) -> int:
    """Return the number of complete copies of the model on the device, not counting the trained one.

    On a CPU, one is the starting weights, which cells are reset to; with a GPU, these are in the host's memory.
    Adapters add a merged copy. Training adds the frozen copies that it measures against, stays close to, samples from
    (including weights of earlier steps), learns from, or scores gold texts with.
    """
    merged = isinstance(spec.model.lora, Lora)
    pristine = device == "cpu"
    if spec.checkpoint is not None:
        return pristine + merged
    objective, sampler = spec.objective, spec.rollout.sampler
    if isinstance(objective, Objective):
        held_near: str = "none" if objective.kl.where == "none" else objective.kl.reference
    else:
        held_near = objective.reference
    asked = spec.reward.asks_start or spec.start_teaches
    # The starting weights are copied once, whatever the number of their uses.
    initial = spec.train.reference_rows > 0 or "initial" in (sampler, held_near) or asked
    renewed = held_near == "refreshed"
    return pristine + sum((initial, renewed, sampler == "round", spec.rollout.staleness_steps > 0, merged))


def _has_teacher(spec: RunSpec) -> bool:
    """Return whether a cell holds separate weights of a teacher.

    If the starting weights teach, they are counted in `copies`.
    """
    return spec.checkpoint is None and spec.teacher.type == "model" and not spec.start_teaches


def _teacher_shape(spec: RunSpec) -> ModelShape | None:
    """Return the teacher's shape, or None if it has no weights of its own or an unknown configuration."""
    return find_shape(spec.model_teacher.source or spec.model.source) if _has_teacher(spec) else None


def _together(engines: Sequence[EngineMemory]) -> EngineMemory:
    """Return the memory of several engines that sample one after another."""
    if len(engines) == 1:
        return engines[0]
    drawing = [(name, size) for engine in engines for name, size in engine.drawing_bytes.items()]
    parts = [(name, size) for engine in engines for name, size in engine.parts_bytes.items()]
    return replace(
        engines[0],
        # All engines hold their parts at the same time, but only one of them samples at a time.
        parts_bytes={name: sum(size for other, size in parts if other == name) for name, _ in parts},
        drawing_bytes={name: max(size for other, size in drawing if other == name) for name, _ in drawing},
        device_frac=min(1.0, sum(engine.device_frac for engine in engines)),
    )


def _critic_has_own_trunk(spec: RunSpec) -> bool:
    """Return whether the critic has its own layers."""
    objective = spec.objective
    return isinstance(objective, Objective) and objective.baseline == "critic" and objective.critic.trunk == "own"


def _drawn_width(spec: RunSpec, width: int) -> int:
    """Return the bytes per element of the weights that sample completions."""
    return {"trainer": width, "float32": FLOAT32_BYTES}.get(spec.rollout.dtype, 2)


def _element_bytes(spec: RunSpec, device: Device) -> int:
    """Return the bytes per element of the weights and activations."""
    dtype = spec.model.dtype
    return 2 if dtype == "bfloat16" or (dtype == "auto" and device == "cuda") else FLOAT32_BYTES
