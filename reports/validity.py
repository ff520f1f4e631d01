"""The validity strip: what must hold for the verdicts to mean something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reports.analysis import Analysis
from reports.document import Report
from reports.formats import number, ratio

SEED_SENTENCE = "A seed varies data order and sampling from one cold start, not the cold start itself."


@dataclass(frozen=True)
class Check:
    """One entry of the validity strip; `ok` is False where the reader should be careful."""

    label: str
    value: str
    ok: bool = True


def validity_checks(analysis: Analysis, report: Report) -> list[Check]:
    """What must hold for the verdict to mean something."""
    sweep = analysis.sweep
    states = Counter(cell["state"] for cell in report["cells"])
    flagged = sum(bool(cell["flags"]) for cell in report["cells"])
    cells = ", ".join([f"{states['done']} of {len(report['cells'])} done", *_counts(states), f"{flagged} flagged"])
    differs = ", ".join(sweep.gate.differs) or "nothing"
    checks = [
        Check("Gate", f"arms differ in {differs}" if sweep.gate.ok else "refused", sweep.gate.ok),
        Check("Cells", cells, ok=states["done"] == len(report["cells"]) and flagged == 0),
        Check("Truncated", _range(_tenths, [arm["truncated_frac"] for arm in report["arms"]]) + " of final samples"),
    ]
    if report["contrasts"]:
        pairing = _range(lambda rho: number(rho, 2), [contrast["correlation"] for contrast in report["contrasts"]])
        ratios = [ratio for contrast in report["contrasts"] for ratio in contrast["token_ratios"]]
        equal = all(contrast["equal_tokens"] for contrast in report["contrasts"] if contrast["n_pairs"])
        tokens = Check("Tokens, arm / baseline", _range(ratio, ratios), ok=equal)
        if not any(arm["generated_tokens"] for arm in report["arms"]):
            tokens = Check("Tokens", "none generated in training by any arm")
        checks += [tokens, Check("Pairing ρ", pairing)]
    disagreement = [arm["grader_disagreement_frac"] for arm in report["arms"]]
    if any(value is not None for value in disagreement):
        checks.append(Check("Graders disagree", _range(_tenths, disagreement) + " of final samples"))
    return [*checks, *map(_contamination, sweep.contamination)]


def _contamination(row: dict[str, Any]) -> Check:
    """Of one evaluation task, against all that arms were trained on."""
    value = (
        f"{row['exact']} of {row['problems']} held-out problems are training prompts, {row['n_gram']} share 8 words in"
        " a row with one"
    )
    return Check(f"Contamination of {row['task']}", value, ok=not row.get("contaminated", row["exact"]))


def _counts(states: Counter[str]) -> list[str]:
    return [f"{count} {state}" for state, count in sorted(states.items()) if state != "done"]


def _range(write: Callable[[float], str], values: Sequence[float | None]) -> str:
    present = sorted(value for value in values if value is not None)
    if not present:
        return number(None)
    low, high = write(present[0]), write(present[-1])
    return low if low == high else f"{low} to {high}"


def _tenths(fraction: float) -> str:
    """0.00313 -> 0.3%: both ends of a range alike."""
    return f"{100 * fraction:.1f}%"
