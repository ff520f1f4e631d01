"""The validity strip of the page: what must hold for the verdicts to mean something, from report.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reports.formats import count, number, percent, ratio
from reports.measure import Analysis
from reports.measure.interactions import factorial_of
from reports.measure.made_alike import Unlike, made_unlike
from reports.page.document import Report
from reports.page.looks import looks_taken

MOST_CORRELATIONS = 3
"""How many correlations are written out."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One entry of the validity strip. ok: False if the reader should be careful."""

    label: str
    value: str
    ok: bool = True


def validity_checks(analysis: Analysis, report: Report) -> list[Check]:
    """What must hold for the verdicts to mean something."""
    sweep = analysis.sweep
    states = Counter(cell["state"] for cell in report["cells"])
    flagged = sum(bool(cell["flags"]) for cell in report["cells"])
    others = [f"{count} {state}" for state, count in sorted(states.items()) if state != "done"]
    cells = ", ".join([f"{states['done']} of {len(report['cells'])} done", *others, f"{flagged} flagged"])
    differs = ", ".join(sweep.gate.differs) or "nothing"
    crossed = factorial_of(sweep)
    checks = [
        Check("Gate", f"arms differ in {differs}" if sweep.gate.ok else "refused", sweep.gate.ok),
        Check("Cells", cells, ok=states["done"] == len(report["cells"]) and flagged == 0),
        Check("Truncated", _range(_tenths, [arm["truncated_frac"] for arm in report["arms"]]) + " of final samples"),
    ]
    if crossed is not None and crossed.n_absent:
        absent = f"{count(crossed.n_absent, 'arm')} of the grid left out: no main effects, no interactions"
        checks.append(Check("Factorial", absent, ok=False))
    if report["contrasts"]:
        ratios = [ratio for row in report["contrasts"] for ratio in row["token_ratios"]]
        equal = all(row["equal_tokens"] for row in report["contrasts"] if row["n_pairs"])
        tokens = Check("Tokens, arm / baseline", _range(ratio, ratios), ok=equal)
        if sweep.checkpoint is not None:
            tokens = Check("Tokens per answer, arm / baseline", _range(ratio, ratios), ok=equal)
        elif not any(arm["generated_tokens"] for arm in report["arms"]):
            tokens = Check("Tokens", "none generated in training by any arm")
        checks += [tokens, Check("Pairing ρ", _pairing(report["contrasts"]))]
        look = report["contrasts"][0]["look"]
        checks += [] if look is None else [Check("Looks", looks_taken(look))]
    disagreement = [arm["grader_disagreement_frac"] for arm in report["arms"]]
    if any(value is not None for value in disagreement):
        checks.append(Check("Graders disagree", _range(_tenths, disagreement) + " of final samples"))
    return [*checks, *_made_differently(analysis), *map(_contamination, sweep.contamination)]


def _made_differently(analysis: Analysis) -> list[Check]:
    """A mark for each contrast whose cells were not made alike: the arms, the fields and their values."""
    fields: dict[tuple[str, str], list[str]] = {}
    for unlike in made_unlike(analysis):
        fields.setdefault((unlike.arm, unlike.baseline), []).append(_unlike_field(unlike))
    return [
        Check(f"{arm} and {baseline} made differently", "; ".join(words), ok=False)
        for (arm, baseline), words in fields.items()
    ]


def _unlike_field(unlike: Unlike) -> str:
    ours, theirs = ", then ".join(unlike.values), ", then ".join(unlike.baseline_values)
    values = f"{ours} in both" if ours == theirs else f"{ours} against {theirs}"
    return f"{unlike.field} {values} (seed{'s' if len(unlike.seeds) > 1 else ''} {', '.join(map(str, unlike.seeds))})"


def _pairing(contrasts: Sequence[Row]) -> str:
    """Every correlation with its interval, or how many of many are not 0: without its interval it misleads."""
    known = [row for row in contrasts if row["correlation_low"] is not None]
    if len(known) > MOST_CORRELATIONS:
        apart = sum(not row["correlation_low"] <= 0 <= row["correlation_high"] for row in known)
        return f"clearly not 0 in {apart} of {len(known)} contrasts"
    written = [
        f"{number(row['correlation'], 2)} [{number(row['correlation_low'], 2)}, {number(row['correlation_high'], 2)}]"
        for row in known
    ]
    return f"{'; '.join(written)} ({percent(known[0]['level'])} intervals)" if written else number(None)


def _contamination(row: Row) -> Check:
    """The problems of one evaluation task among all that arms were trained on."""
    value = (
        f"{row['exact']} of {row['problems']} held-out problems are training prompts, {row['n_gram']} share 8 words in"
        " a row with one"
    )
    return Check(f"Contamination of {row['task']}", value, ok=not row.get("contaminated", row["exact"]))


def _range(write: Callable[[float], str], values: Sequence[float | None]) -> str:
    present = sorted(value for value in values if value is not None)
    if not present:
        return number(None)
    low, high = write(present[0]), write(present[-1])
    return low if low == high else f"{low} to {high}"


def _tenths(fraction: float) -> str:
    """0.00313 -> 0.3%, so that both ends of a range look alike."""
    return f"{100 * fraction:.1f}%"
