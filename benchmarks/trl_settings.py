"""Settings of TRL that were tried against each other, each one change from the base in trl_grpo.py.

`python benchmarks/grpo_step.py --explore` measures them; its JSON says which were fastest.
"""

from __future__ import annotations

from typing import Any

CPU: dict[str, dict[str, Any]] = {
    "base": {},
    "2 micro-batches": {"micro_batches": 2},
    "4 micro-batches": {"micro_batches": 4},
    "eager attention": {"attn_implementation": "eager"},
    "static cache": {"cache_implementation": "static"},
    "unfused AdamW": {"optim": "adamw_torch"},
    "bf16 autocast": {"bf16": True},
    "torch.compile": {"torch_compile": True},
    # Its cache takes 60 % of the memory unless it is told otherwise.
    "continuous batching": {
        "use_transformers_continuous_batching": True,
        "transformers_continuous_batching_config": {"max_memory_percent": 0.02},
    },
}
CUDA: dict[str, dict[str, Any]] = {
    # float32 weights and bfloat16 arithmetic, as ours; TRL's generation casts nothing then.
    "autocast": {"bf16": True},
    "autocast, 8 micro-batches": {"bf16": True, "micro_batches": 8},
    # bfloat16 weights and optimiser: less exact than ours, but nothing is faster.
    "bf16 weights": {"weights_dtype": "bfloat16", "bf16": True},
    "bf16 weights, 8 micro-batches": {"weights_dtype": "bfloat16", "bf16": True, "micro_batches": 8},
    "bf16 weights, 8 micro-batches, continuous batching": {
        "weights_dtype": "bfloat16",
        "bf16": True,
        "micro_batches": 8,
        "use_transformers_continuous_batching": True,
    },
}
BEST_ON_CPU = ("base", "unfused AdamW", "torch.compile")
"""Those of the exploration that no other one beats clearly; each is measured with one thread and with two."""
BEST_FOR_ABLATION: dict[str, Any] = CPU["base"]
"""In 30 steps torch.compile does not earn back the minutes that it takes."""
