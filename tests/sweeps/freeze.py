"""Write the hashes of the shipped sweeps to hashes.json: `python -m tests.sweeps.freeze`.

Do it knowingly. A cell whose training hash changes is another cell: everybody's finished cells of that arm are trained
anew. With another evaluation hash all of them are evaluated anew, from their last checkpoints.
"""

from __future__ import annotations

import json
from pathlib import Path

from evals.yaml_file import load_yaml
from harness.plan import make_plan
from harness.plan.profile import EXTENDS
from harness.plan.sweep_file import SHIPPED, load_sweep, shipped

FROZEN = Path(__file__).parent / "hashes.json"
NEEDS_STEPS = ("positives_only", "ppo")
"""Sweeps that ask about steps of the work, which only the task of the profile `tiny` has."""

NEEDS_TINY = (
    *("distillation", "scalerl", "sft_prompts_vs_samples", "start_by_algorithm", "start_by_algorithm_tuned"),
    *("thinking_modes", "turns", "trainers_dapo", "trainers_dpo", "trainers_dr_grpo", "trainers_grpo"),
)
"""Sweeps that bring a teacher, demonstrations, a prompt or a task along, with the tokens of the model of the profile
`tiny`, or slices of its completion limit; or another trainer, which has no adapters, and no mini-batches of pairs."""

Hashes = dict[str, dict[str, dict[str, str]]]


def profiles_of(sweep: str) -> list[str]:
    """The shipped profiles that a shipped sweep can be asked on; those that extend another one stand for all sweeps
    under one of them."""
    profiles = shipped(SHIPPED / "profiles")
    if sweep in (*NEEDS_STEPS, *NEEDS_TINY):
        return ["tiny"]
    variants = [name for name, path in profiles.items() if EXTENDS in load_yaml(path)]
    return [name for name in profiles if sweep == "std_norm" or name not in variants]


def hashes() -> Hashes:
    """Sweep -> profile -> arm -> hashes of training and evaluation at seed 0, for all that are shipped and fit."""
    sweeps = [name for name, path in shipped(SHIPPED).items() if load_sweep(str(path))[0].search is None]
    return {sweep: {profile: _arms(sweep, profile) for profile in profiles_of(sweep)} for sweep in sweeps}


def _arms(sweep: str, profile: str) -> dict[str, str]:
    # As on a machine without a GPU: what a profile leaves to the machine is resolved in the plan.
    plan = make_plan(str(shipped(SHIPPED)[sweep]), profile, seeds=1, on_gpu=lambda: False)
    return {cell.arm: f"{cell.hash} {cell.evaluation}" for cell in plan.cells}


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(hashes(), indent=2) + "\n", encoding="utf-8")
    print(f"wrote {FROZEN}")
