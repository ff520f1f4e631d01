"""Records of searches that never ran: study.json with numbers that a test chooses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.schema import SCHEMA
from harness.records.study import StudyRecord, read_study

ACCURACY = {"metric": "eval.final.arithmetic.pass@1", "direction": "maximize"}
TOKENS = {"metric": "generated_tokens", "direction": "minimize"}

Document = dict[str, Any]
Changes = Mapping[int, Mapping[str, Any]]

KNOBS: Document = {
    "train.learning_rate": {"kind": "log", "low": 1e-4, "high": 3e-3},
    "rollout.temperature": {"kind": "float", "low": 0.6, "high": 1.2},
    "objective.aggregation": {"kind": "categorical", "choices": ["token_mean", "sequence_mean", "constant_length"]},
    "train.updates_per_rollout": {"kind": "categorical", "choices": [1, 2, 4]},
    "objective.rule.clip_high": {
        "kind": "float", "low": 0.2, "high": 0.4, "when": {"train.updates_per_rollout": [2, 4]},
    },
    "train.group_size": {"kind": "int", "low": 4, "high": 16},
}  # fmt: skip
LONG_KNOBS: Document = {
    f"package{i:02}.a_knob_with_a_name_of_forty_chars_{i:05}": {"kind": "log", "low": 1e-6, "high": 1.0}
    if i % 3
    else {"kind": "categorical", "choices": [f"a choice with a long name {j}" for j in range(2 + i // 2)]}
    for i in range(12)
}

CONTRAST: Document = {
    "arm": "best", "baseline": "default", "metric": "eval.final.arithmetic.pass@1", "task": "arithmetic",
    "n_pairs": 6, "difference_pp": 4.8, "low_pp": 2.1, "high_pp": 7.5, "level": 0.95, "p": 0.004, "p_holm": 0.004,
    "p_sign_flip": 0.03, "verdict": "better", "margin_pp": 1.0, "correlation": 0.4, "detectable_pp": 2.4,
    "token_ratio": 1.01, "equal_tokens": True, "n_contrasts": 1, "missing": [], "flagged_seeds": [],
    "without_flagged": None, "new_problems": None, "note": "", "warnings": [], "noise_low_pp": None,
    "noise_high_pp": None,
}  # fmt: skip


def study_document(
    trials: int = 40, *, objectives: int = 1, knobs: Document = KNOBS, changes: Changes | None = None, **fields: Any
) -> Document:
    """A study whose first trial is the default; some are pruned and some fail. changes: fields of trials by number."""
    ranges = {name: {"low": None, "high": None, "step": None, "choices": None, "when": {}} | knob
              for name, knob in knobs.items()}  # fmt: skip
    rows = [_trial(number, ranges, objectives) | dict((changes or {}).get(number, {})) for number in range(trials)]
    complete = [row for row in rows if row["state"] == "complete"]
    best = max(complete, key=lambda row: row["values"][0], default=None)
    shares = np.random.default_rng(5).dirichlet(np.ones(len(ranges))).tolist()
    enough = len(complete) >= 8
    return {
        "schema": SCHEMA,
        "sweep": "tune_grpo",
        "question": "Which settings of GRPO are worth comparing?",
        "profile": "tiny",
        "command": "bench tune tune_grpo",
        "seeds": [0],
        "objectives": [ACCURACY, TOKENS][:objectives],
        "knobs": ranges,
        "sampler": {"type": "tpe", "n_startup_trials": 5},
        "pruner": {"type": "median"} if objectives == 1 else {"type": "none"},
        "budget": {"trials": trials, "tokens": None, "hours": None},
        "trials": rows,
        "best": None if best is None else best["number"],
        "front": _front(complete) if objectives == 2 else ([] if best is None else [best["number"]]),
        "importances": [
            {"metric": objective["metric"], "shares": dict(zip(ranges, shares, strict=True)), "n_trials": len(complete)}
            for objective in [ACCURACY, TOKENS][:objectives]
            if enough
        ],
        "importances_refused": None if enough else f"{len(complete)} complete trials, 8 are needed",
        "confirmation": None,
    } | fields


def confirmation(trial: int, **changes: Any) -> Document:
    return {
        "sweep": "tune_grpo-confirm", "trial": trial, "seeds": [1, 2, 3, 4, 5, 6], "metric": CONTRAST["metric"],
        "contrast": CONTRAST, "search_pp": 78.1, "confirmed_pp": 74.3, "shrinkage_pp": 3.8, "default_search_pp": 70.0,
        "default_confirmed_pp": 69.5, "n_trials": 20,
    } | changes  # fmt: skip


def write_study(folder: Path, document: Any) -> StudyRecord:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(document), encoding="utf-8")
    return read_study(folder)


def _trial(number: int, knobs: Document, objectives: int) -> Document:
    rng = np.random.default_rng([3, number])
    params = {name: _drawn(knob, rng) for name, knob in knobs.items()}
    for name, knob in knobs.items():
        if any(params.get(other) not in values for other, values in knob["when"].items()):
            del params[name]
    first = params.get("train.learning_rate", 1e-3)
    score = float(0.75 - 0.08 * math.log10(first / 1e-3) ** 2 + rng.normal(0, 0.02)) if number else 0.7
    tokens = int(120_000 + 400_000 * max(0.0, score - 0.6) + rng.normal(0, 15_000))
    state = "complete" if number % 7 != 3 else ("pruned" if number % 2 else "failed")
    state = "pruned" if objectives == 1 and number % 5 == 4 else state
    state = "failed" if objectives == 2 and state == "pruned" else state
    last = {"complete": 5, "pruned": 2, "failed": 0, "running": 1}[state]
    curve = [[10 * step, score - 0.3 * math.exp(-step / 1.5) + float(rng.normal(0, 0.01))]
             for step in range(1, last + 1)]  # fmt: skip
    return {
        "number": number,
        "state": state,
        "params": params,
        "values": [score, float(tokens)][:objectives] if state == "complete" else None,
        "hash": f"{number:010x}",
        "reason": {"pruned": f"below the median at step {10 * last}", "failed": "CUDA out of memory"}.get(state),
        "is_default": number == 0,
        "flags": [],
        "intermediate": curve if objectives == 1 else [],
        "duration_s": 31.2 + number if state != "failed" else None,
        "generated_tokens": tokens,
        "cells": [f"trial-{number}-s0-{number:010x}"],
        "same_as": None,
    }


def _drawn(knob: Document, rng: np.random.Generator) -> Any:
    if knob["kind"] == "categorical":
        return knob["choices"][int(rng.integers(len(knob["choices"])))]
    if knob["kind"] == "log":
        return float(np.exp(rng.uniform(math.log(knob["low"]), math.log(knob["high"]))))
    if knob["kind"] == "int":
        return int(rng.integers(knob["low"], knob["high"] + 1))
    return float(rng.uniform(knob["low"], knob["high"]))


def _front(complete: list[Document]) -> list[int]:
    def beaten(row: Document) -> bool:
        score, tokens = row["values"]
        return any(
            other["values"][0] >= score and other["values"][1] <= tokens and other["values"] != row["values"]
            for other in complete
        )

    return [row["number"] for row in complete if not beaten(row)]
