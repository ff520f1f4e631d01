"""What a benchmark ends with: JSON or text, a file of results, and an exit code that says whether it met its bounds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import machine_facts, machine_name

RESULTS = Path(__file__).parent / "results"


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks; the description is the script's docstring, with its example."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print only the JSON on stdout")
    parser.add_argument("--save", action="store_true", help=f"keep the JSON in {RESULTS.parent.name}/{RESULTS.name}/")
    return parser


def bounds(at_most: dict[str, float] | None = None, at_least: dict[str, float] | None = None) -> dict[str, Any]:
    """What is required of keys of the outcome."""
    return {"at_most": at_most or {}, "at_least": at_least or {}}


def missed(outcome: dict[str, Any]) -> list[str]:
    """The bounds that an outcome does not meet, in words, and its `faults`. A key that was not measured is passed
    over."""
    required = outcome.get("required", bounds())
    over = [
        f"{key} is {outcome[key]:.3g}, required: at most {limit:g}"
        for key, limit in required["at_most"].items()
        if key in outcome and not outcome[key] <= limit
    ]
    under = [
        f"{key} is {outcome[key]:.3g}, required: at least {limit:g}"
        for key, limit in required["at_least"].items()
        if key in outcome and not outcome[key] >= limit
    ]
    return [*over, *under, *outcome.get("faults", [])]


def finish(
    name: str, outcome: dict[str, Any], lines: Sequence[str], given: argparse.Namespace, device: str = "cpu"
) -> None:
    """Print the outcome, keep it if asked to, in a file for each make of machine, and end the process with 1 if a bound
    was missed."""
    outcome = {"benchmark": name, "machine": machine_facts(device), **outcome}
    failures = missed(outcome)
    outcome["met"] = not failures
    if given.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}-{machine_name(outcome['machine'])}.json").write_text(as_json(outcome), encoding="utf-8")
    if given.json:
        print(as_json(outcome), end="")
    else:
        print("\n".join([*lines, *(f"missed: {failure}" for failure in failures)]))
    sys.exit(1 if failures else 0)


def as_json(outcome: dict[str, Any]) -> str:
    return json.dumps(_rounded(outcome), indent=2) + "\n"


def _rounded(value: Any) -> Any:
    """Six significant digits are more than any clock is good for."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
