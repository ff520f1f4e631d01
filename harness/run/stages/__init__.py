"""What cells share and is therefore made once: by which job, and where in the cache the result lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.config.hashing import (
    base_evaluation_hash,
    best_of_n_hash,
    pairs_hash,
    pass_rates_hash,
    reward_model_hash,
    starting_point_hash,
)
from harness.config.model_source import parse_source
from harness.config.rollout import DatasetPairs
from harness.config.run_spec import RunSpec
from harness.run.jobs import Job, JobKind
from harness.run.prompts import read_correct_counts, training_prompts


def source_of_start(spec: RunSpec, home: Path) -> str:
    """`model.source` of the weights that reinforcement learning starts from.

    After a cold start, and for a GGUF (which takes half a minute to dequantise), that is a folder in the cache.
    """
    if spec.model.cold_start.type == "none" and parse_source(spec.model.source).kind != "gguf":
        return spec.model.source
    return f"path:{(home / 'cache' / f'start-{starting_point_hash(spec)[:16]}').resolve()}"


_INPUTS: Mapping[JobKind, tuple[Callable[[RunSpec], bool], Callable[[RunSpec], str]]] = MappingProxyType(
    {
        "pass_rates": (
            lambda spec: spec.task.filter.type != "none" and spec.pairs.type != "dataset",
            lambda spec: f"pass-rates-{pass_rates_hash(spec)[:16]}.json",
        ),
        "pairs": (
            lambda spec: spec.pairs.type == "dataset",
            lambda spec: f"pairs-{pairs_hash(spec)[:16]}.safetensors",
        ),
        "reward_model": (
            lambda spec: spec.reward.needs_reward_model and spec.pairs.type != "dataset",
            lambda spec: f"reward-model-{reward_model_hash(spec)[:16]}",
        ),
    }
)
"""Stage -> whether a cell needs its result, and the name that the result has in the cache."""


def input_paths(spec: RunSpec, home: Path) -> dict[JobKind, Path]:
    """The results of stages that a cell reads, by stage, in the order in which they are made."""
    return {kind: home / "cache" / name(spec) for kind, (needed, name) in _INPUTS.items() if needed(spec)}


def input_jobs(spec: RunSpec, home: Path) -> list[Job]:
    """The jobs that make what a cell reads and what is not there yet."""
    paths = input_paths(spec, home)
    return [stage_job(kind, path, spec, home) for kind, path in paths.items() if not path.exists()]


def input_remarks(spec: RunSpec, home: Path) -> Iterator[str]:
    """What a user should know of the results that a cell reads: how many pairs are left, how good a reward model is."""
    paths = input_paths(spec, home)
    if "pairs" in paths:
        from harness.run.encoded_pairs import load_pairs

        counts = load_pairs(paths["pairs"]).counts
        cut = f"; {counts.truncated} of these have a side cut at pairs.max_tokens" if counts.truncated else ""
        yield f"pairs: {counts.kept} of {counts.rows} are kept{cut}; {counts.dropped}"
    if "reward_model" in paths:
        from harness.run.stages.reward_model import read_report

        report = read_report(paths["reward_model"])
        right = report["held_out_accuracy"]
        yield (
            f"reward model of {report['pairs']} pairs, {report['flipped_pairs']} of them with the labels swapped: "
            + ("no pairs were held out" if right is None else f"ranks {right:.0%} of held-out pairs right")
        )


def require_enough(spec: RunSpec, home: Path) -> None:
    """Raise RefusedError, here rather than cell by cell, if too few prompts or pairs are left for a step."""
    paths = input_paths(spec, home)
    if "pass_rates" in paths:
        training_prompts(spec, read_correct_counts(paths["pass_rates"]))
    if isinstance(spec.pairs, DatasetPairs):
        from harness.run.encoded_pairs import load_pairs

        load_pairs(paths["pairs"]).require(spec.pairs.pairs_per_step)


def base_path(spec: RunSpec, home: Path) -> Path:
    """The evaluation before training."""
    return home / "cache" / f"base-{base_evaluation_hash(spec)[:16]}.json"


def best_of_n_path(spec: RunSpec, home: Path) -> Path:
    """What choosing by the reward model makes of the starting weights' samples."""
    return home / "cache" / f"best-of-n-{best_of_n_hash(spec)[:16]}.json"


def stage_job(kind: JobKind, path: Path, spec: RunSpec, home: Path) -> Job:
    """The job of a stage, or of a cell, with all that it reads."""
    inputs = {name: str(where) for name, where in input_paths(spec, home).items()}
    return Job(kind, str(path), spec_as_json(spec), source_of_start(spec, home), inputs)


def spec_as_json(spec: RunSpec) -> dict[str, Any]:
    return dict(json.loads(spec.model_dump_json()))
