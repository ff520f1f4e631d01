"""The findings of a probe, as the document that is saved, printed and read by programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from harness.records.files import write_atomic, write_json
from harness.run.provenance import provenance
from harness.shelves.probe.design import Design, ProbePoint
from harness.shelves.probe.measure import ProbeMeasurement
from harness.shelves.probe.moments import (
    InnerProducts,
    NoiseInterval,
    Statistics,
    exponential,
    reference_statistics,
    statistics,
)


def findings(design: Design, measurement: ProbeMeasurement) -> dict[str, object]:
    """Build the document: {"name", "question", "profile", "seed", "model", "reference", "baseline", "points"}.

    `points` has one row per objective and point. Intervals are {"value", "low", "high"}, null where noise hides them.
    Comparisons with the baseline are null for the baseline itself.
    """
    spec = design.reference
    norm, noise = _reference(measurement)
    return {
        "name": design.file.name,
        "question": design.file.question,
        "profile": design.profile,
        "seed": design.file.seed,
        "model": {"source": spec.model.source, "weights": measurement.weights_digest},
        "reference": {
            "completions": spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt,
            "mean_reward": measurement.mean_reward,
            "norm": norm,
            "noise_to_signal": noise,
        },
        "baseline": design.baseline,
        "points": [
            row
            for point, by_objective in measurement.points.items()
            for row in _rows(point, by_objective, design.baseline)
        ],
    }


def write_findings(folder: Path, document: Mapping[str, object], measurement: ProbeMeasurement) -> None:
    """Write probe.json, provenance.json and estimates.parquet into an existing folder.

    The table has one row per gradient estimate.
    """
    write_json(folder / "probe.json", document)
    write_json(folder / "provenance.json", provenance())
    table = pa.Table.from_pylist(estimate_rows(measurement))
    write_atomic(folder / "estimates.parquet", lambda aside: pq.write_table(table, aside))


class EstimateRow(TypedDict):
    """A gradient estimate."""

    objective: str
    group_size: int
    batch_size: int
    estimate: int
    """Its number among those of the objective and point."""
    norm: float
    cosine: float | None
    """To the reference gradient: None if noise hides that gradient, and 0 for an estimate of length 0."""


def estimate_rows(measurement: ProbeMeasurement) -> list[EstimateRow]:
    """Return a row for each gradient estimate."""
    norm, _ = _reference(measurement)
    rows: list[EstimateRow] = []
    for point, by_objective in measurement.points.items():
        for name, products in by_objective.items():
            along = zip(products.norms.tolist(), products.with_reference.mean(1).tolist(), strict=True)
            rows += [
                {
                    "objective": name,
                    "group_size": point.group_size,
                    "batch_size": point.batch_size,
                    "estimate": index,
                    "norm": length,
                    "cosine": None if norm is None else product / (length * norm) if length else 0.0,
                }
                for index, (length, product) in enumerate(along)
            ]
    return rows


def _reference(measurement: ProbeMeasurement) -> tuple[float | None, float | None]:
    """Return the norm of the reference gradient and its noise, or None for both if noise hides it."""
    return reference_statistics(measurement.reference) or (None, None)


def _rows(point: ProbePoint, by_objective: dict[str, InnerProducts], baseline: str) -> list[dict[str, object]]:
    """Return one row per objective at a point."""
    measured = {name: statistics(products) for name, products in by_objective.items()}
    return [
        {
            "objective": name,
            **point._asdict(),
            "estimates": len(by_objective[name].norms),
            "cosine": found.cosine.interval()._asdict(),
            # The interval is computed on the logarithm: the quantity is positive, and ratios become differences.
            "noise_to_signal": exponential(found.noise_to_signal.log().interval())._asdict(),
            "estimate_cosine": found.estimate_cosine.interval()._asdict(),
            "mean_norm": exponential(found.mean_norm.log().interval())._asdict(),
            **_compared(found, None if name == baseline else measured[baseline]),
        }
        for name, found in measured.items()
    ]


def _compared(found: Statistics, baseline: Statistics | None) -> dict[str, object]:
    """Return the difference of the cosines, and the noise as a multiple of the baseline's."""
    if baseline is None:
        return {"cosine_difference": None, "noise_ratio": None}
    difference: NoiseInterval = (found.cosine - baseline.cosine).interval()
    ratio = exponential((found.noise_to_signal.log() - baseline.noise_to_signal.log()).interval())
    return {"cosine_difference": difference._asdict(), "noise_ratio": ratio._asdict()}
