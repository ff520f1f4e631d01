"""Write what OpenRLHF 0.11.2 and prime-rl 0.8.0 compute from the inputs of tests/golden/golden.json to
tests/golden/elsewhere.json: losses, gradients and advantages.

    python -m tests.algorithms.elsewhere.freeze_golden FOLDER ...

The folders hold the packages `openrlhf`, `prime_rl` and `prime_rl.configs`, as sources. What they import besides torch
is not needed for their formulas, and is left out.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

from algorithms.elsewhere.openrlhf import PPO_RAY
from algorithms.elsewhere.prime_rl import RL

GOLDEN = Path(__file__).parents[2] / "golden"
INPUTS = json.loads((GOLDEN / "golden.json").read_text(encoding="utf-8"))["inputs"]
GROUP = 3
LEFT_OUT = (
    *("beartype", "deepspeed", "flash_attn", "jaxtyping", "loguru", "optimum", "peft", "pydantic_config", "pylatexenc"),
    *("ray", "renderers", "tomli_w", "torchdata", "verifiers", "vllm", "wandb"),
)

PPO: list[dict[str, Any]] = [
    {"algo.advantage.estimator": estimator, "algo.kl.init_coef": 0.0}
    for estimator in ("reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo", "flash_reinforce")
]
PPO += [
    {"algo.advantage.estimator": "reinforce", "algo.kl.init_coef": 0.3},
    {"actor.eps_clip": 0.1},
    {"actor.eps_clip_low_high": [0.2, 0.28], "actor.dual_clip": 1.2},
    {"actor.loss_agg_mode": "seq-mean-token-mean"},
    {"actor.policy_loss_type": "gspo", "actor.eps_clip": 0.05},
    {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.3, "algo.kl.estimator": "k1"},
    {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.3, "algo.kl.estimator": "k2"},
    {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.3, "algo.kl.estimator": "k3"},
    {"actor.entropy_coef": 0.2},
    {
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "clip",
        "algo.advantage.is_correction_threshold": [0.0, 1.1],
    },
    {
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_threshold": [0.8, 1.2],
    },
    {
        "algo.advantage.is_correction_level": "token",
        "actor.policy_loss_type": "gspo",
        "actor.eps_clip": 0.05,
    },
]
PRIME_RL: list[dict[str, Any]] = [
    {"trainer.loss.dppo_mask_low": 1.0, "trainer.loss.dppo_mask_high": 1.0, "trainer.loss.kl_tau": 0.0},
    {"orchestrator.algo.type": "sft"},
]


class _LeftOut(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for LEFT_OUT."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        left_out = name.partition(".")[0] in LEFT_OUT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if left_out else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: Any = MagicMock(name=spec.name)
        module.__spec__, module.__path__ = spec, []
        return module  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        pass


def given(name: str) -> Tensor:
    return torch.tensor(INPUTS[name], dtype=torch.float64)


def nested(settings: dict[str, Any]) -> Any:
    """`args.actor.eps_clip`, as OpenRLHF reads its options."""
    root = SimpleNamespace()
    for name, value in settings.items():
        *path, last = name.split(".")
        node = root
        for part in path:
            if not hasattr(node, part):
                setattr(node, part, SimpleNamespace())
            node = getattr(node, part)
        setattr(node, last, value)
    return root


def openrlhf_entry(settings: dict[str, Any]) -> dict[str, Any]:
    loss_module: Any = importlib.import_module("openrlhf.models.loss")
    utils: Any = importlib.import_module("openrlhf.models.utils")
    maker: Any = importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker").RemoteExperienceMaker
    settings = {"algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0.0, **settings}
    args = nested({**PPO_RAY.defaults, **settings, "rollout.n_samples_per_prompt": GROUP})
    mask = given("mask").bool()
    kl = utils.compute_approx_kl(given("old_logp"), given("ref_logp"), kl_estimator=args.algo.kl.estimator)
    experience = SimpleNamespace(
        index=list(range(len(mask))),
        rewards=given("rewards"),
        action_mask=mask,
        kl=torch.zeros_like(kl) if args.algo.kl.use_loss else kl,
        info={},
        response_length=mask.sum(1),
    )
    self = SimpleNamespace(
        strategy=SimpleNamespace(args=args),
        kl_ctl=SimpleNamespace(value=args.algo.kl.init_coef),
        advantage_estimator=args.algo.advantage.estimator,
        get_cumulative_returns=lambda *values: maker.get_cumulative_returns(None, *values),
    )
    maker.compute_advantages_and_returns(self, [experience])
    eps = args.actor.eps_clip
    low, high = args.actor.eps_clip_low_high or (eps, eps)
    policy_loss = loss_module.PolicyLoss(
        clip_eps_low=low,
        clip_eps_high=high,
        dual_clip=args.actor.dual_clip,
        token_level_loss=args.actor.loss_agg_mode == "token-mean",
        policy_loss_type=args.actor.policy_loss_type,
        is_correction_level=args.algo.advantage.is_correction_level,
        is_correction_mode=args.algo.advantage.is_correction_mode,
        is_correction_gating=args.algo.advantage.is_correction_gating,
        is_correction_threshold=args.algo.advantage.is_correction_threshold,
    )
    logp = given("logp").requires_grad_()
    size = {"batch_num_tokens": mask.sum(), "global_batch_size": len(mask)}
    loss = policy_loss(
        logp,
        given("old_logp"),
        experience.advantages,
        action_mask=mask,
        rollout_log_probs=given("rollout_logp"),
        **size,
    )[0]
    if args.algo.kl.use_loss:
        kl = utils.compute_approx_kl(logp, given("ref_logp"), kl_estimator=args.algo.kl.estimator)
        loss = loss + args.algo.kl.init_coef * loss_module.aggregate_loss(kl, mask, **size)
    if args.actor.entropy_coef:
        loss = loss - args.actor.entropy_coef * loss_module.aggregate_loss(-given("old_logp"), mask, **size)
    (gradient,) = torch.autograd.grad(loss, logp)
    advantages = experience.advantages * mask
    return {
        "settings": settings,
        "loss": loss.item(),
        "grad": gradient.tolist(),
        "advantages": advantages.tolist(),
    }


def prime_rl_entry(settings: dict[str, Any]) -> dict[str, Any]:
    module: Any = importlib.import_module("prime_rl.trainer.rl.loss")
    names = {name.rpartition(".")[2]: value for name, value in {**RL.defaults, **settings}.items()}
    loss_config = SimpleNamespace(**names)
    mask, rewards = given("mask").bool(), given("rewards")
    advantages = (rewards.view(-1, GROUP) - rewards.view(-1, GROUP).mean(1, keepdim=True)).flatten()
    logp = given("logp").requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(mask)):
        inputs = module.LossInputs(
            trainer_logprobs=logp[row],
            inference_logprobs=given("rollout_logp")[row],
            ref_logprobs=None,
            advantages=advantages[row].expand(mask.shape[1]),
            loss_mask=mask[row],
        )
        supervised = settings.get("orchestrator.algo.type") == "sft"
        total += (module.ce_loss_fn(inputs) if supervised else module.default_loss_fn(inputs, loss_config)).loss
    loss = total / mask.sum()
    (gradient,) = torch.autograd.grad(loss, logp)
    # Its filter of zero advantages acts before the loss.
    settings = {"orchestrator.train.filter_zero_advantages": False, **settings}
    return {"settings": settings, "loss": loss.item(), "grad": gradient.tolist()}


def main() -> None:
    sys.path[:0] = sys.argv[1:]
    sys.meta_path.append(_LeftOut())
    document = {
        "openrlhf": [openrlhf_entry(settings) for settings in PPO],
        "prime_rl": [prime_rl_entry(settings) for settings in PRIME_RL],
    }
    (GOLDEN / "elsewhere.json").write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
