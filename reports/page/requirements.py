"""Requirements that a program makes of a verdict, in words: `no_std not worse than group_std`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.errors import RefusedError, few, nearest
from harness.words import said
from reports.formats import interval, percent
from reports.report import BestDifference, Node, VerdictRow
from reports.statistics import Verdict


@dataclass(frozen=True)
class Relation:
    """A relation between two arms that an interval may show."""

    holds: Callable[[float, float, float], bool]
    """(low, high, margin) -> bool, all in percentage points."""
    says: str
    """Where the interval must lie. {margin} is filled in."""


RELATIONS = {
    "better": Relation(lambda low, high, margin: low > 0, "above 0"),
    "worse": Relation(lambda low, high, margin: high < 0, "below 0"),
    "equivalent": Relation(
        lambda low, high, margin: -margin <= low and high <= margin, "within -{margin} and +{margin} pp"
    ),
    "not worse": Relation(lambda low, high, margin: low > -margin, "above -{margin} pp"),
    "not better": Relation(lambda low, high, margin: high < margin, "below +{margin} pp"),
    "not equivalent": Relation(
        lambda low, high, margin: low > margin or high < -margin, "beyond -{margin} or +{margin} pp"
    ),
}
""""not worse" is non-inferiority: the interval excludes a loss as large as the margin. An interval that merely shows no
loss is not enough, because too few seeds never show one.
"""

VERDICTS = ("identical", "inconclusive")
"""Relations that hold only if the verdict has the same name."""

_FORM = re.compile(r"(?P<arm>\S+)\s+(?:is\s+)?(?P<relation>\S.*\S)\s+(?:than|to|against)\s+(?P<baseline>\S+)")
_EXAMPLE = said("reports.e_g_no_std")


@dataclass(frozen=True)
class Requirement:
    """A required relation between two arms, or between the two values of a main effect."""

    text: str
    arm: str
    relation: str
    baseline: str


class Judgement(Node):
    """The outcome of a requirement, with the interval and margin that decided it, in percentage points."""

    require: str
    holds: bool
    why: str
    arm: str
    relation: str
    baseline: str
    verdict: Verdict
    low_pp: float | None
    high_pp: float | None
    level: float | None
    margin_pp: float

    @property
    def sentence(self) -> str:
        return f"{'holds' if self.holds else 'does not hold'}: {self.require}: {self.why}."


def parse_requirement(text: str) -> Requirement:
    """Parse `ARM RELATION than|to|against ARM`. Raises RefusedError for anything else."""
    known = [*RELATIONS, *VERDICTS]
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise RefusedError("reports.requirement_malformed", text=text, example=_EXAMPLE, known=", ".join(known))
    relation = " ".join(found["relation"].split())
    if relation not in known:
        raise RefusedError(
            "reports.unknown_relation",
            text=text,
            relation=relation,
            nearest=nearest(relation, known),
            known=", ".join(known),
        )
    return Requirement(" ".join(text.split()), found["arm"], relation, found["baseline"])


def judge(requirement: Requirement, rows: Sequence[VerdictRow], interim: str | None = None) -> Judgement:
    """Judge a requirement by the row that compares its two arms.

    rows: contrasts and effects of report.json.
    interim: why nothing may be concluded yet, or None.
    The arm and the baseline may be named in either order. Raises RefusedError if the two are not compared.
    """
    row, turned = _contrast(requirement, rows)
    if turned:
        row = _turned(row)
    holds, why = _decide(requirement.relation, row) if interim is None else (False, interim)
    return Judgement(
        require=requirement.text,
        holds=holds,
        why=why.rstrip("."),
        arm=requirement.arm,
        relation=requirement.relation,
        baseline=requirement.baseline,
        verdict=row.verdict,
        low_pp=row.low_pp,
        high_pp=row.high_pp,
        level=row.level,
        margin_pp=row.margin_pp,
    )


_TURNED: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}


def _turned(row: VerdictRow) -> VerdictRow:
    """Swap the sides of a contrast. Only the numbers that decide a relation are swapped."""
    changes: dict[str, object] = {"verdict": _TURNED.get(row.verdict, row.verdict), **_mirrored(row)}
    if row.bests is not None:
        changes["bests"] = row.bests.model_copy(update=_mirrored(row.bests))
    return row.model_copy(update=changes)


def _mirrored(row: VerdictRow | BestDifference) -> dict[str, float | None]:
    """Negate the interval and swap its ends."""
    low, high = row.low_pp, row.high_pp
    return {"low_pp": None if high is None else -high, "high_pp": None if low is None else -low}


def _decide(relation: str, row: VerdictRow) -> tuple[bool, str]:
    """Return whether the relation holds, and why.

    For tuned arms, the relation must hold both at the settings found and between the arms' bests, which differ by what
    a short search may have missed.
    """
    verdict, low, high = row.verdict, row.low_pp, row.high_pp
    if relation in VERDICTS:
        return verdict == relation, f"the verdict is {verdict.replace('_', ' ')}"
    # Identical arms have no spread and so no interval, but they satisfy every relation that equality satisfies.
    if verdict == "identical":
        return relation in ("equivalent", "not worse", "not better"), said("reports.final_weights_identical")
    if low is None or high is None:
        reason = row.note or said("reports.there_too_few_seeds")
        return False, said("reports.there_no_interval_judge", reason=reason)
    asked, margin = RELATIONS[relation], row.margin_pp
    intervals = {"": (low, high)}
    if (bests := row.bests) is not None and bests.low_pp is not None and bests.high_pp is not None:
        intervals[" between the arms' bests"] = (bests.low_pp, bests.high_pp)
    held = {of_what: asked.holds(*ends, margin) for of_what, ends in intervals.items()}
    # Explain with an interval that fails. If all hold, use the last: the one between the bests, if known.
    of_what = next((one for one, holds in held.items() if not holds), list(held)[-1])
    lies = "lies" if held[of_what] else "does not lie"
    where = asked.says.format(margin=f"{margin:g}")
    why = f"the {percent(row.level)} interval{of_what} {interval(*intervals[of_what])} pp {lies} {where}"
    return all(held.values()), why


def _contrast(requirement: Requirement, rows: Sequence[VerdictRow]) -> tuple[VerdictRow, bool]:
    """Return the row that compares the two arms, and whether it compares them in the opposite direction."""
    pairs = {(row.arm, row.baseline): row for row in rows}
    arm, baseline = requirement.arm, requirement.baseline
    if (arm, baseline) in pairs:
        return pairs[arm, baseline], False
    if (baseline, arm) in pairs:
        return pairs[baseline, arm], True
    known = list(dict.fromkeys(name for pair in pairs for name in pair))
    for name in (arm, baseline):
        if name not in known:
            raise RefusedError(
                "reports.requirement_of_unknown_arm",
                text=requirement.text,
                name=name,
                nearest=nearest(name, known),
                known=few(known),
            )
    compared = few([f"{one} with {other}" for one, other in pairs])
    raise RefusedError(
        "reports.requirement_not_compared", text=requirement.text, arm=arm, baseline=baseline, compared=compared
    )
