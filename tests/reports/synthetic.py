"""Records of sweeps that never ran: the files of the contract, with numbers that a test chooses."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evals.metrics import metric_facts, metrics_for
from harness.records import SweepRecord, cell_directory_name, read_sweep
from harness.records.cell import EMBEDDINGS_FILE, STARTS_FILE
from harness.records.embeddings import EmbeddedToken, write_embeddings
from harness.records.schema import SCHEMA
from tests.reports.synthetic_rollouts import write_training

TASK = "arithmetic"
K = [1, 2, 4, 8]
BEST_OF_N = [
    {"n": 1, "kl_nats": 0.0, "proxy": 0.0, "correct": 0.35},
    {"n": 2, "kl_nats": 0.19, "proxy": 0.56, "correct": 0.41},
    {"n": 4, "kl_nats": 0.64, "proxy": 1.03, "correct": 0.45},
]
ASKS = "the question"
BUDGET_TOKENS = 200_000
STEPS = 40
EVERY = 10
SAMPLES = 2
RATES = ("0", "below_quarter", "below_half", "below_three_quarters", "below_1", "1")

TEXTS = ("1+2=3 #### 3", "2+2=5 #### 5")

Changes = Mapping[tuple[str, int], Mapping[str, Any]]


def write_sweep(
    folder: Path,
    arms: Mapping[str, float],
    *,
    seeds: int = 6,
    changes: Changes | None = None,
    texts: Sequence[str] = TEXTS,
    other_tasks: Sequence[str] = (),
    **sweep_fields: Any,
) -> SweepRecord:
    """Write a sweep whose arms gain `arms[name]` percentage points over the first, its baseline, and read it back.

    changes: fields of status.json by (arm, seed), and `score` to fix a final pass@1. other_tasks: evaluated besides
    `TASK`, where arms do as well and noise is the same.
    """
    cells: list[dict[str, Any]] = []
    for arm, effect_pp in arms.items():
        for seed in range(seeds):
            changed = dict((changes or {}).get((arm, seed), {}))
            directory = cell_directory_name(f"arm{len(cells)}", seed, f"{len(cells):010x}")
            cells.append({"arm": arm, "seed": seed, "hash": f"{len(cells):010x}", "dir": directory})
            tasks = [TASK, *other_tasks]
            _write_cell(folder / "cells" / directory, list(arms).index(arm), seed, effect_pp, changed, texts, tasks)
    document = {
        "schema": SCHEMA,
        "kind": "sweep",
        "name": folder.name,
        "question": "Does dividing advantages by the reward's standard deviation help?",
        "profile": "tiny",
        "arms": list(arms),
        "baseline": next(iter(arms)),
        "metric": "eval.final.pass@1",
        "margin_pp": 1.0,
        "alpha": 0.05,
        "seeds": list(range(seeds)),
        "ablate": ["objective.scale"],
        "co_changes": {},
        "varied": {arm: {"objective.scale": f"scale {i}"} for i, arm in enumerate(arms)},
        "cells": cells,
        "command": f"bench run {folder.name}",
        "tasks": [TASK, *other_tasks],
        "k": K,
        "gate": {"ok": True, "differs": ["objective.scale"]},
        "warnings": [],
        "budget_tokens": BUDGET_TOKENS,
        "best_of_n": dict.fromkeys(arms, BEST_OF_N),
        "base_scores": [score_row(0, 0, 0.35, final=True)],
        "metrics": {name: metric_facts(name) for name in metrics_for(K)},
        "asks": ASKS,
        "contrasts": [],
        "evaluation": None,
        "held_out": {},
    }
    (folder / "sweep.json").write_text(json.dumps(document | sweep_fields))
    return read_sweep(folder)


def write_cell(path: Path, arm: int, seed: int, score: float) -> None:
    """A finished cell of the `arm`-th arm with this final pass@1, in a folder that does not exist yet."""
    _write_cell(path, arm, seed, 0.0, {"score": score}, TEXTS, [TASK])


def _write_cell(
    path: Path,
    arm: int,
    seed: int,
    effect_pp: float,
    changed: dict[str, Any],
    texts: Sequence[str],
    tasks: Sequence[str],
) -> None:
    path.mkdir(parents=True)
    rng = np.random.default_rng([arm, seed])
    shared = np.random.default_rng([99, seed]).normal(0, 0.015)
    final = changed.pop("score", 0.55 + shared + effect_pp / 100 + rng.normal(0, 0.008))
    tokens = np.cumsum(rng.normal(BUDGET_TOKENS / STEPS, 120, STEPS)).astype(int)
    trained = 0 if changed.get("state") == "pending" else STEPS
    status: dict[str, Any] = {
        "schema": SCHEMA,
        "state": "done",
        "reason": None,
        "flags": [],
        "step": trained,
        "steps": STEPS,
    }
    status |= {"generated_tokens": int(tokens[-1]), "digest": f"{arm:02x}{seed:02x}"} | changed
    _write_json(path / "status.json", status)
    _write_jsonl(path / STARTS_FILE, [{"epoch": 0, "from_step": 0, "torch": "2.13.0", "cpu": "test"}])
    _write_json(path / "spec.json", {"seed": seed})
    if status["state"] == "pending":
        return

    def progress(step: int) -> float:
        return float(0.35 + (final - 0.35) * (1 - math.exp(-4 * step / STEPS)) / (1 - math.exp(-4)))

    _write_jsonl(path / "steps.jsonl", [
        {
            "step": step,
            "generated_tokens": int(tokens[step - 1]),
            "reward/mean": progress(step) + rng.normal(0, 0.03),
            "entropy/full": 1.1 * math.exp(-1.5 * step / STEPS) + 0.2 + rng.normal(0, 0.02),
            "entropy/sampled": 1.0,
            "len/mean": 20 + 0.1 * step + rng.normal(0, 0.6),
            **_rollout_fields(step, arm, seed),
            "grad_norm": 1.0 + 0.1 * arm,
            "grad_clipped_frac": 0.2,
            **_proxy_fields(step, progress(step), rng),
            **_pair_fields(step, arm, rng),
        }
        for step in range(1, STEPS + 1)
    ])  # fmt: skip
    _write_jsonl(path / "timing.jsonl", [
        {"step": step, "rollout_s": 0.2, "reward_s": 0.01, "logprob_s": 0.05, "update_s": 0.1, "eval_s": 0.0,
         "total_s": 0.36}
        for step in range(1, STEPS + 1)
    ])  # fmt: skip
    scores = [
        score_row(step, int(tokens[step - 1]), progress(step) + rng.normal(0, 0.01), final=False)
        for step in range(EVERY, STEPS, EVERY)
    ]
    if status["state"] == "done":
        scores.append(score_row(STEPS, int(tokens[-1]), final, final=True))
        _write_evals(path / "evals.parquet", arm, texts)
    _write_jsonl(path / "scores.jsonl", [row | {"task": task} for row in scores for task in tasks])
    write_training(path, arm, seed, STEPS, EVERY, texts)
    (path / EMBEDDINGS_FILE).write_bytes(_embeddings(0.01 * (1 + arm + seed)))


@functools.cache
def _embeddings(moved: float) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / EMBEDDINGS_FILE
        write_embeddings(path, [_embedded(token, moved) for token in range(6)])
        return path.read_bytes()


def _embedded(token: int, moved: float) -> EmbeddedToken:
    """One of six tokens on a circle, which moves to the right; the first three write a word."""
    x, y = math.cos(token), math.sin(token)
    return EmbeddedToken(
        token=token,
        text=f" t{token}",
        word="Wait" if token < 3 else None,
        start_x=x,
        start_y=y,
        end_x=x + moved,
        end_y=y,
        centre_distance=2.0,
        moved=2 * moved,
    )


def score_row(step: int, tokens: int, pass_at_1: float, *, final: bool) -> dict[str, Any]:
    metrics = {f"pass@{k}": 1 - (1 - pass_at_1) ** (k**0.6) for k in K}
    metrics |= {
        "avg@n": pass_at_1,
        "mean_tokens": 12 + 20 * pass_at_1 + tokens % 7 / 10,
        "truncated_frac": 0.01,
        "faulty_steps_frac": 0.03,
    }
    metrics |= {"se_problems_pp": 1.5, "se_samples_pp": 1.0}
    metrics |= {f"maj@{k}": min(1.0, pass_at_1 * (1 + 0.1 * math.log2(k))) for k in K}
    metrics |= {"distinct_answers": 4.0 - 2 * pass_at_1 if step else 3.5, "pass@1": pass_at_1}
    if step:  # training loses variety: at large k the model before it is ahead
        metrics |= {f"pass@{k}": min(1.0, pass_at_1 + 0.06 * math.log2(k)) for k in K}
    metrics["ece"] = 0.1 if step else 0.2
    return {"step": step, "final": final, "task": TASK, "generated_tokens": tokens, "metrics": metrics,
            "reliability": _reliability(tokens, pass_at_1), "n_problems": 100, "n_samples": 8}  # fmt: skip


def _reliability(tokens: int, pass_at_1: float) -> list[dict[str, Any]]:
    """Ten bins; of 8 samples, confidences are sevenths and some bins stay empty."""
    rng = np.random.default_rng(tokens)
    bins: list[dict[str, Any]] = [
        {"low": i / 10, "high": (i + 1) / 10, "count": 0, "confidence": None, "correct_frac": None} for i in range(10)
    ]
    for same in range(8):
        inside = bins[max(0, -(-10 * same // 7) - 1)]
        correct = (same / 7) ** (3 - 3 * pass_at_1) + rng.normal(0, 0.05)
        inside |= {"count": 20 + 60 * same, "confidence": same / 7, "correct_frac": min(1.0, max(0.0, correct))}
    return bins


def _rollout_fields(step: int, arm: int, seed: int) -> dict[str, float | None]:
    """Fields about a step's completions; some steps have no right one."""
    rng = np.random.default_rng([7, arm, seed, step])
    done, noise = step / STEPS, rng.normal(0, 1, 8)
    return {
        "len/p95": 45 + 10 * done + noise[0],
        "len/correct": None if step == 3 else 18 + 5 * done + noise[1],
        "len/incorrect": 30 + 8 * done + noise[2],
        "len/truncated_frac": max(0.0, 0.05 * done + 0.01 * noise[3]),
        "clip/high_frac_sign_aware": max(0.0, 0.01 + 0.004 * noise[4]),
        "clip/low_frac_sign_aware": max(0.0, 0.006 + 0.003 * noise[5]),
        "kl/exact_start": 0.1 * done + 0.004 * abs(noise[6]),
        "reward/frac_zero_std": min(1.0, max(0.0, 0.2 + 0.5 * done + 0.05 * noise[7])),
        "reward/frac_all_1": 0.4 * done,
        **{
            f"adv/abs_mean_at_rate_{name}": None if name in ("0", "1") else 1.2 - 0.1 * i
            for i, name in enumerate(RATES)
        },
    }


def _proxy_fields(step: int, correct: float, rng: np.random.Generator) -> dict[str, float]:
    """A proxy that rises all the way while the truth turns half-way; the KL goes back a little at the end."""
    done = step / STEPS
    return {
        "kl/sequence_start": 30 * (done - 0.2 * max(0.0, done - 0.9)) ** 2 + abs(rng.normal(0, 0.1)),
        "reward/reward_model": 2 * done + rng.normal(0, 0.2),
        "reward/correct": correct - max(0.0, done - 0.5) * 0.4 + rng.normal(0, 0.02),
    }


def _pair_fields(step: int, arm: int, rng: np.random.Generator) -> dict[str, float]:
    """Both sides fall, the rejected one faster; the margin is in the arm's own unit."""
    done = step / STEPS
    return {
        "logps/chosen_mean": -0.4 - 0.3 * done + rng.normal(0, 0.02),
        "logps/rejected_mean": -0.5 - 1.2 * done + rng.normal(0, 0.03),
        "rewards/margin": (1 + 4 * arm) * done + rng.normal(0, 0.03),
        "rewards/accuracy": min(1.0, 0.5 + 0.5 * done + rng.normal(0, 0.02)),
    }


def _write_evals(path: Path, arm: int, texts: Sequence[str]) -> None:
    """The first problem is solved by all; arms of an odd number solve the others with their last sample too."""
    import pyarrow as pa
    import pyarrow.parquet

    rows = [
        {
            "step": STEPS,
            "final": True,
            "task": TASK,
            "problem_id": f"p{problem}",
            "sample": sample,
            "text": f"{text} <b>so" if arm % 2 else text,
            "n_tokens": len(text),
            "truncated": False,
            "extracted": "3",
            "correct": problem == 0 or (arm % 2 == 1 and sample == SAMPLES - 1),
            "verdicts": json.dumps({"math": problem == 0, "string": sample == 0}),
            "reasons": json.dumps({"math": _reason(problem == 0), "string": _reason(sample == 0)}),
            "faulty_steps": None,
        }
        for problem, text in enumerate(texts)
        for sample in range(SAMPLES)
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def _reason(is_right: bool) -> str:
    return "match" if is_right else "mismatch"


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


def _write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
