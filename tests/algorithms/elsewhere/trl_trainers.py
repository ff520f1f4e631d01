"""TRL's own trainers, made to see log-probs that are given instead of those of a model.

Nothing of what they compute from log-probs and rewards is replaced: a trainer is built from its config, scores given
completions by `_generate_and_score_completions`, and its `_compute_loss` takes what comes out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import harness.models

MODEL = Path(harness.models.__path__[0]) / "tiny"
LIMIT = 7
GROUP = 3
_PROMPT = "1+1="
_ORDINARY = 5
"""A token that does not end a completion."""


@dataclass(frozen=True)
class Rollout:
    """Six completions, two groups of three, of 1 to 7 tokens; log-probs [6, 7] of everyone who has an opinion."""

    lengths: Tensor
    truncated: Tensor
    rewards: Tensor
    logp: Tensor
    """With a gradient."""
    old_logp: Tensor
    ref_logp: Tensor
    sampler_logp: Tensor
    entropy: Tensor
    """With a gradient."""

    @property
    def mask(self) -> Tensor:
        return torch.arange(LIMIT) < self.lengths[:, None]

    @property
    def groups(self) -> Tensor:
        return torch.arange(len(self.lengths)) // GROUP


def rollout(drift: float = 0.4, seed: int = 0) -> Rollout:
    """drift: the std of a token's log-ratio to the old policy."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(6, LIMIT, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([7, 3, 5, 2, 7, 1])
    old_logp = -normal().abs()
    return Rollout(
        lengths=lengths,
        truncated=lengths == LIMIT,
        rewards=torch.tensor([1.0, 0.0, 0.25, 0.0, 1.0, 1.0]),
        logp=(old_logp + drift * normal()).requires_grad_(),
        old_logp=old_logp,
        ref_logp=old_logp + 0.4 * normal(),
        sampler_logp=old_logp + 0.3 * normal(),
        entropy=normal().abs().requires_grad_(),
    )


def policy_gradient_loss(config: str, settings: Mapping[str, Any], given: Rollout, micro_batches: int) -> Tensor:
    """The sum over micro-batches of the loss that a trainer with these settings takes the gradient of."""
    import trl
    from datasets import Dataset
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    kinds = {
        "GRPOConfig": (trl.GRPOConfig, trl.GRPOTrainer),
        "RLOOConfig": (trl.RLOOConfig, trl.RLOOTrainer),
        "GMPOConfig": (GMPOConfig, GMPOTrainer),
    }
    make_config, make_trainer = kinds[config]
    settings = dict(settings)
    use_vllm = settings.pop("use_vllm", False)  # the engine is not needed for the loss, but for the trainer's start
    with tempfile.TemporaryDirectory() as folder:
        args = make_config(
            output_dir=folder,
            per_device_train_batch_size=len(given.lengths) // micro_batches,
            gradient_accumulation_steps=micro_batches,
            num_generations=GROUP,
            num_iterations=2,  # else the old log-probs are taken to be the new ones
            max_completion_length=LIMIT,
            pad_to_multiple_of=None,
            use_cpu=True,
            bf16=False,
            report_to="none",
            **settings,
        )
        trainer = make_trainer(
            model=str(MODEL),
            args=args,
            reward_funcs=lambda completions, **_: given.rewards.tolist(),
            train_dataset=Dataset.from_list([{"prompt": _PROMPT}] * 2),
        )
    trainer.use_vllm = use_vllm
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = micro_batches
    end = trainer.eos_token_ids[0]
    completions = [
        [_ORDINARY] * (length - 1) + [_ORDINARY if truncated else end]
        for length, truncated in zip(given.lengths.tolist(), given.truncated.tolist(), strict=True)
    ]
    prompt = trainer.processing_class(_PROMPT)["input_ids"]
    texts = [str(row) for row in range(len(completions))]
    sampled = [row[:length] for row, length in zip(given.sampler_logp.tolist(), given.lengths.tolist(), strict=True)]
    prompts = [prompt] * len(completions)
    if config == "RLOOConfig":
        trainer._generate = lambda _: (prompts, completions, texts)
    else:
        reported = sampled if use_vllm else None
        trainer._generate = lambda _: (prompts, completions, None, texts, reported, {}, None, None)

    rows = slice(None)

    def spoken(model: Any, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        if model is getattr(trainer, "ref_model", None):
            return given.ref_logp, given.entropy, None
        return (given.logp if torch.is_grad_enabled() else given.old_logp)[rows], given.entropy[rows], None

    trainer._get_per_token_logps_and_entropies = spoken
    scored = trainer._generate_and_score_completions([{"prompt": _PROMPT}] * len(completions))
    total = torch.zeros((), dtype=torch.float64)
    size = len(completions) // micro_batches
    for first in range(0, len(completions), size):
        rows = slice(first, first + size)
        part = {
            name: value[rows] if isinstance(value, Tensor) and value.ndim else value for name, value in scored.items()
        }
        loss = trainer._compute_loss(trainer.model, part)
        # The one trainer whose loss transformers divides by the number of micro-batches.
        total = total + (loss / micro_batches if config == "RLOOConfig" else loss)
    return total


@dataclass(frozen=True)
class PairsOfCompletions:
    """Three pairs: log-probs [6, 7], those of the chosen sides first."""

    lengths: Tensor
    logp: Tensor
    """With a gradient."""
    ref_logp: Tensor

    @property
    def mask(self) -> Tensor:
        return torch.arange(LIMIT) < self.lengths[:, None]


def pairs(seed: int = 0) -> PairsOfCompletions:
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(6, LIMIT, generator=generator, dtype=torch.float64)

    ref_logp = -normal().abs() - 0.1
    logp = (ref_logp + 0.2 * normal()).clamp(max=-0.01)
    return PairsOfCompletions(torch.tensor([7, 3, 5, 2, 6, 1]), logp.requires_grad_(), ref_logp)


def pairs_loss(config: str, settings: Mapping[str, Any], given: PairsOfCompletions) -> Tensor:
    """The loss that a trainer with these settings takes the gradient of, on the three pairs as one batch."""
    import trl
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    kinds = {
        "DPOConfig": (trl.DPOConfig, trl.DPOTrainer),
        "KTOConfig": (trl.KTOConfig, trl.KTOTrainer),
        "CPOConfig": (CPOConfig, CPOTrainer),
    }
    make_config, make_trainer = kinds[config]
    rows: list[dict[str, Any]] = [{"prompt": _PROMPT, "chosen": "2", "rejected": "3"}] * 4
    if config == "KTOConfig":
        rows = [{"prompt": _PROMPT, "completion": str(row), "label": row % 2 == 0} for row in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        args = make_config(
            output_dir=folder,
            per_device_train_batch_size=2,
            use_cpu=True,
            bf16=False,
            report_to="none",
            **settings,
        )
        from transformers import AutoTokenizer

        trainer = make_trainer(
            model=str(MODEL),
            args=args,
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            train_dataset=Dataset.from_list(rows),
        )
    trainer.model.train()
    if config == "CPOConfig":
        return _cpo_loss(trainer, given)
    loss: Tensor = trainer._compute_loss(_speaker(given.logp, given), _inputs(trainer, config, given), False)
    return loss


def _inputs(trainer: Any, config: str, given: PairsOfCompletions) -> dict[str, Any]:
    """The first token of each row is the prompt."""
    ids = torch.zeros(6, LIMIT + 1, dtype=torch.long)
    mask = torch.cat([torch.zeros(6, 1, dtype=torch.long), given.mask.long()], 1)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask}
    if config == "DPOConfig":
        trainer.ref_model = _speaker(given.ref_logp, given)
        trainer.precompute_ref_logps = False
        return inputs
    trainer.ref_model = _speaker(given.ref_logp, given)
    policy = {True: given.logp, False: given.ref_logp}
    trainer._compute_kl_logps = lambda model, _: (policy[model is not trainer.ref_model] * given.mask).sum(1).detach()
    return inputs | {"label": torch.tensor([True] * 3 + [False] * 3)}


def _speaker(logp: Tensor, given: PairsOfCompletions) -> Any:
    """A model whose log-probs of the completions are given."""
    logp = logp * given.mask

    def model(**_: Any) -> SimpleNamespace:
        zeros = torch.zeros_like(logp)
        return SimpleNamespace(
            log_probs=logp, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), log_sum_sq_probs=zeros
        )

    return model


def _cpo_loss(trainer: Any, given: PairsOfCompletions) -> Tensor:
    ids = torch.zeros(6, LIMIT + 1, dtype=torch.long)
    labels = torch.cat([torch.full((6, 1), -100), torch.where(given.mask, 0, -100)], 1)
    batch: dict[str, Tensor] = {}
    for side, rows in (("chosen", slice(0, 3)), ("rejected", slice(3, 6))):
        batch |= {f"{side}_input_ids": ids[rows], f"{side}_attention_mask": torch.ones_like(ids[rows])}
        batch[f"{side}_labels"] = labels[rows]

    def model(*_: Any, **__: Any) -> SimpleNamespace:
        """Two words, of which the first has the given log-prob."""
        logits = torch.stack([given.logp, torch.log(-torch.expm1(given.logp))], 2)
        return SimpleNamespace(logits=torch.cat([logits, logits[:, :1]], 1))

    loss, _ = trainer.get_batch_loss_metrics(model, batch, train_eval="train")
    result: Tensor = loss
    return result
