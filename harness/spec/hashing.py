"""The semantic hash: two specs with the same hash give the same numbers, so one cell serves both."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from evals.grading import EXTRACTION_VERSION, get_grader
from evals.prompts import get_template
from evals.tasks import get_task
from harness.models.source import parse_source
from harness.spec.knobs import active
from harness.spec.run_spec import RunSpec

NUMERICS_VERSION = 1
"""Raised whenever the same spec gives other numbers than before; a golden five-step run guards it."""

# Where a cell runs and how often it saves do not change its numbers.
_WITHOUT_EFFECT = ("train.device", "train.checkpoint_every")


def semantic_hash(spec: RunSpec) -> str:
    """blake2b over the active knobs that can change the numbers, and over what they refer to: weights, data, template
    and grader versions. Needs no data. Raises RefusedError if a local model is missing."""
    knobs = {knob: value for knob, value in active(spec).items() if knob not in _WITHOUT_EFFECT}
    del knobs["model.source"]
    return digest({"knobs": knobs, "refers_to": _references(spec), "numerics": NUMERICS_VERSION})


def base_evaluation_hash(spec: RunSpec) -> str:
    """Names the final evaluation of the model before reinforcement learning; shared by all arms and seeds."""
    knobs = {knob: value for knob, value in active(spec).items() if knob.startswith(("model.cold_start", "eval."))}
    return digest({"base": knobs, "refers_to": _references(spec), "numerics": NUMERICS_VERSION})


def cold_start_hash(spec: RunSpec) -> str:
    """Names the result of the cold start."""
    knobs = {knob: value for knob, value in active(spec).items() if knob.startswith("model.cold_start")}
    return digest({"cold_start": knobs, "model": _fingerprint(spec.model.source), "numerics": NUMERICS_VERSION})


def digest(document: Any) -> str:
    """40 hexadecimal digits over canonical JSON."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(canonical.encode(), digest_size=20).hexdigest()


def _references(spec: RunSpec) -> dict[str, Any]:
    return {
        "model": _fingerprint(spec.model.source),
        "train": get_task(spec.task.train).split("train").fingerprint,
        "eval": {name: get_task(name).split("test").fingerprint for name in spec.eval.tasks},
        "extraction": {name: get_task(name).extract for name in (spec.task.train, *spec.eval.tasks)},
        "extraction_version": EXTRACTION_VERSION,
        "templates": {name: get_template(name).version for name in (spec.task.template, spec.eval.template)},
        "graders": {name: get_grader(name).version for name in (spec.reward.grader, spec.eval.grader)},
    }


@lru_cache
def _fingerprint(source: str) -> str:
    return parse_source(source).fingerprint()
