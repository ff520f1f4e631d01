"""Writes the README's tables of presets anew from the code: `python docs/preset_table.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from algorithms import AnyObjective, Objective, PreferenceObjective, active_knobs, describe, presets
from algorithms.space import defaults

README = Path(__file__).parents[1] / "README.md"

_COLUMNS = ("baseline", "scale", "ratio", "aggregation")
_PREFERENCE_COLUMNS = ("link", "logp", "reference", "beta")
_ALWAYS = ("kl.estimator", "kl.beta")


def table() -> str:
    """Markdown, a row for each policy-gradient preset."""
    rows = [["name", "baseline", "scale", "ratio", "rule", "aggregation", "extra", "source"]]
    for name in presets("policy_gradient"):
        preset = describe(name)
        knobs = _shown(preset.objective)
        baseline, scale, ratio, aggregation = (knobs.get(column, "none") for column in _COLUMNS)
        rule = _call(knobs["rule.type"], {k: v for k, v in knobs.items() if k.startswith("rule.") and k != "rule.type"})
        plain = Objective(aggregation="token_mean")
        beside = [k for k in _beside(preset.objective, plain, _COLUMNS, _ALWAYS) if not k.startswith("rule.")]
        rows.append([f"`{name}`", baseline, scale, ratio, rule, aggregation, _extra(knobs, beside), preset.source])
    return _markdown(rows)


def preference_table() -> str:
    """Markdown, a row for each preference preset."""
    rows = [["name", *_PREFERENCE_COLUMNS, "extra", "source"]]
    for name in presets("preference"):
        preset = describe(name)
        knobs = _shown(preset.objective)
        beside = _beside(preset.objective, PreferenceObjective(link="logistic"), _PREFERENCE_COLUMNS)
        columns = (knobs[column] for column in _PREFERENCE_COLUMNS)
        rows.append([f"`{name}`", *columns, _extra(knobs, beside), preset.source])
    return _markdown(rows)


_TABLES = {
    ("<!-- presets: written by docs/preset_table.py -->\n", "<!-- end of presets -->\n"): table,
    (
        "<!-- preference presets: written by docs/preset_table.py -->\n",
        "<!-- end of preference presets -->\n",
    ): preference_table,
}
"""Marks before and after a table -> what writes it."""


def with_tables(text: str) -> str:
    """The README with the tables between their marks written anew."""
    for (start, end), write in _TABLES.items():
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = f"{before}{start}{write()}{end}{after}"
    return text


def _markdown(rows: list[list[str]]) -> str:
    heading, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (heading, ["---"] * len(heading), *body))


def _shown(objective: AnyObjective) -> dict[str, str]:
    return {knob: "off" if value is None else str(value) for knob, value in active_knobs(objective).items()}


def _call(kind: str, knobs: dict[str, str]) -> str:
    set_here = [
        f"{knob.rpartition('.')[2]} {value}" for knob, value in knobs.items() if value not in ("off", "none", "0.0")
    ]
    return f"{kind} ({', '.join(set_here)})" if set_here else kind


def _extra(knobs: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{knob}={knobs[knob]}" for knob in names)


def _beside(
    objective: AnyObjective, plain: AnyObjective, columns: tuple[str, ...], always: tuple[str, ...] = ()
) -> list[str]:
    """Knobs beside the columns that are not at their defaults."""
    unmoved = defaults(objective) | active_knobs(plain)
    return [
        knob
        for knob, value in active_knobs(objective).items()
        if knob not in columns and (knob in always or value != unmoved[knob])
    ]


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
