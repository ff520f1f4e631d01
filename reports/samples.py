"""A few completions to read, as the model wrote them."""

from __future__ import annotations

from dataclasses import dataclass

from reports.analysis import Analysis
from reports.measurements import Measurement

SAMPLES_PER_ARM = 2
SAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class Sample:
    """A completion of the final evaluation; `text` is what the model wrote: untrusted, cut to a readable length."""

    arm: str
    seed: int
    problem: str
    text: str
    outcome: str


def sample_completions(analysis: Analysis) -> list[Sample]:
    """The first sample of the first problems of each arm's first seed, as evaluated last."""
    return [sample for cells in analysis.measurements.values() if cells for sample in _samples(cells[0])]


def _samples(measurement: Measurement) -> list[Sample]:
    import pyarrow.compute as pc

    table = measurement.cell.read_evals()
    if table is None:
        return []
    chosen = pc.and_(pc.equal(table["task"], measurement.metric.task), pc.equal(table["sample"], 0))
    rows = table.filter(pc.and_(table["final"], chosen)).slice(0, SAMPLES_PER_ARM).to_pylist()
    return [
        Sample(
            arm=measurement.cell.arm,
            seed=measurement.cell.seed,
            problem=str(row["problem_id"]),
            text=_cut(row["text"]),
            outcome=f"{'correct' if row['correct'] else 'wrong'}, {row['n_tokens']} tokens"
            + (", truncated" if row["truncated"] else ""),
        )
        for row in rows
    ]


def _cut(text: str) -> str:
    if len(text) <= SAMPLE_CHARACTERS:
        return text
    return f"{text[:SAMPLE_CHARACTERS]} … ({len(text) - SAMPLE_CHARACTERS} more characters)"
