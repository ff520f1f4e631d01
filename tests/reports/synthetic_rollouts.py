"""Rollouts of cells that never ran, with what an update did with each token."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.rollouts import write_rollouts

UPDATES = 3
REFLECTING, PLAIN = "2+2=5. Wait, 2+2=4", "The sum of 2 and 2 is 4"


def tokens_of(text: str) -> list[str]:
    """A token for each word, with the space before it, and for each sign."""
    return re.findall(r" ?\w+|[^\w]", text)


def recorded(
    step: int, text: str, correct: bool, columns: dict[str, Any] | None = None, sample: int = 0, epochs: int = 1
) -> dict[str, Any]:
    """A row of rollouts/*.parquet whose tokens all have one log-prob, entropy, advantage and ratio; columns: others."""
    tokens = tokens_of(text)
    T = len(tokens)
    return {
        "step": step,
        "problem_id": "p0",
        "sample": sample,
        "text": text,
        "tokens": list(range(T)),
        "logps": [-1.0] * T,
        "reward": float(correct),
        "correct": correct,
        "truncated": False,
        "token/chars": [len(token) for token in tokens],
        "token/logp": [-1.0] * T,
        "token/entropy": [0.5] * T,
        "token/advantage": [0.25] * T,
        "token/update": list(range(epochs)),
        "token/log_ratio": [[0.0] * T] * epochs,
        "token/clipped": [[False] * T] * epochs,
        "token/masked": [[False] * T] * epochs,
    } | (columns or {})


def write_training(cell: Path, arm: int, seed: int, steps: int, every: int, texts: Sequence[str]) -> None:
    """Write two groups of four completions a step, in a file for every `every` steps.

    One word becomes more frequent, is unlikely, and is clipped now and then. The first of a group writes the first of
    `texts`.
    """
    (cell / "rollouts").mkdir()
    for name, content in _training(arm, seed, steps, every, texts[0]).items():
        (cell / "rollouts" / name).write_bytes(content)


@functools.cache
def _training(arm: int, seed: int, steps: int, every: int, said: str) -> dict[str, bytes]:
    """Return the files of a cell by their names: most tests write the same cells."""
    rng, files = np.random.default_rng([7, arm, seed]), {}
    for first in range(1, steps + 1, every):
        chosen = range(first, min(first + every, steps + 1))
        rows = [
            _row(step, group, sample, rate, step / steps, arm, rng, said)
            for step in chosen
            for group in range(2)
            for rate in [int(rng.integers(0, 5))]
            for sample in range(4)
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{first:06d}-{chosen[-1]:06d}.parquet"
            write_rollouts(path, rows)
            files[path.name] = path.read_bytes()
    return files


def _row(
    step: int, group: int, sample: int, rate: int, done: float, arm: int, rng: np.random.Generator, said: str
) -> dict[str, Any]:
    """sample: of the group, of which the first `rate` are right."""
    text = REFLECTING if rng.random() < 0.2 + 0.6 * done else PLAIN
    if sample == 0:
        text = f"step {step}: {said}"
    tokens = tokens_of(text)
    rare = np.array([token.strip() == "Wait" for token in tokens])
    shape = (UPDATES, len(tokens))
    log_ratio = rng.normal(0.02 * arm, 0.02 + 0.3 * rare, shape) * np.arange(UPDATES)[:, None]
    columns = {
        "problem_id": f"t{(2 * step + group) % 7}",
        "token/logp": rng.normal(-0.3 - 3 * rare * (1 - 0.5 * done), 0.05),
        "token/entropy": rng.normal(0.4 + 1.2 * rare, 0.05),
        "token/advantage": rng.normal(0.2 * rare, 0.1),
        "token/log_ratio": list(log_ratio),
        "token/clipped": list(log_ratio > 0.2),
    }
    return recorded(step, text, sample < rate, columns, sample, UPDATES)


def write_rows(cell: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Replace a cell's rollouts."""
    folder = cell / "rollouts"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    write_rollouts(folder / "000001-000001.parquet", rows)
