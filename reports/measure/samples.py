"""Completions to read, as the model wrote them: along training and in the final evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.records.tables import read_first_row
from reports.measure import Analysis
from reports.measure.measurements import Measurement

SAMPLES_PER_ARM = 2
SAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class Sample:
    """A completion. text: what the model wrote, cut to a readable length; untrusted."""

    arm: str
    seed: int
    when: str
    problem: str
    text: str
    outcome: str


def sample_completions(analysis: Analysis) -> dict[str, list[Sample]]:
    """Completions of each arm's first seed, not chosen for what they show.

    They are the first completion at the beginning, in the middle and at the end of training, and the first sample of
    the first problems in the final evaluation.
    """
    return {
        arm: samples
        for arm, cells in analysis.measurements.items()
        if cells and (samples := [*_training_samples(cells[0]), *_final_samples(cells[0])])
    }


def _training_samples(measurement: Measurement) -> list[Sample]:
    files = measurement.cell.rollout_files()
    chosen = dict.fromkeys([*files[:1], *files[len(files) // 2 :][:1], *files[-1:]])
    return [sample for path in chosen if (sample := _first(path, measurement)) is not None]


def _first(path: Path, measurement: Measurement) -> Sample | None:
    row = read_first_row(path, ("step", "problem_id", "text", "reward", "correct", "truncated"))
    if "text" not in row:
        return None
    reward = row.get("reward")
    outcome = _verdict(row) + ("" if reward is None else f", reward {reward:.3g}")
    return _sample(measurement, f"training step {row['step']}", row, outcome)


def _final_samples(measurement: Measurement) -> list[Sample]:
    import pyarrow.compute as pc

    columns = ["problem_id", "sample", "text", "correct", "n_tokens", "truncated"]
    table = measurement.read_final_samples(columns, pc.field("sample") == 0)
    if table is None or "text" not in table.column_names:
        return []
    return [
        _sample(measurement, "final evaluation", row, f"{_verdict(row)}, {row['n_tokens']} tokens")
        for row in table.slice(0, SAMPLES_PER_ARM).to_pylist()
    ]


def _sample(measurement: Measurement, when: str, row: dict[str, Any], outcome: str) -> Sample:
    return Sample(
        arm=measurement.cell.arm,
        seed=measurement.cell.seed,
        when=when,
        problem=str(row["problem_id"]),
        text=_cut(str(row["text"])),
        outcome=outcome + (", truncated" if row.get("truncated") else ""),
    )


def _verdict(row: dict[str, Any]) -> str:
    return "correct" if row.get("correct") else "wrong"


def _cut(text: str) -> str:
    if len(text) <= SAMPLE_CHARACTERS:
        return text
    return f"{text[:SAMPLE_CHARACTERS]} … ({len(text) - SAMPLE_CHARACTERS} more characters)"
