"""Writes the README's table of presets anew from the code: `python docs/preset_table.py`."""

from __future__ import annotations

from pathlib import Path

from algorithms import Objective, active_knobs, describe, presets
from algorithms.space import defaults

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- presets: written by docs/preset_table.py -->\n", "<!-- end of presets -->\n"

_COLUMNS = ("baseline", "scale", "ratio", "aggregation")
_ALWAYS = ("kl.estimator", "kl.beta")


def table() -> str:
    """Markdown, a row for each preset."""
    rows = [["name", "baseline", "scale", "ratio", "rule", "aggregation", "extra", "source"], ["---"] * 8]
    for name in presets():
        preset = describe(name)
        knobs = {knob: "off" if value is None else str(value) for knob, value in active_knobs(preset.objective).items()}
        baseline, scale, ratio, aggregation = (knobs.get(column, "none") for column in _COLUMNS)
        rule = _call(knobs["rule.type"], {k: v for k, v in knobs.items() if k.startswith("rule.") and k != "rule.type"})
        extra = ", ".join(f"{knob}={knobs[knob]}" for knob in _extra(preset.objective))
        rows.append([f"`{name}`", baseline, scale, ratio, rule, aggregation, extra, preset.source])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(text: str) -> str:
    """The README with the table between its marks written anew."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{table()}{END}{after}"


def _call(kind: str, knobs: dict[str, str]) -> str:
    set_here = [
        f"{knob.rpartition('.')[2]} {value}" for knob, value in knobs.items() if value not in ("off", "none", "0.0")
    ]
    return f"{kind} ({', '.join(set_here)})" if set_here else kind


def _extra(objective: Objective) -> list[str]:
    """Knobs beside the columns that are not at their defaults."""
    plain, unset = active_knobs(Objective(aggregation="token_mean")), defaults(objective)
    return [
        knob
        for knob, value in active_knobs(objective).items()
        if knob not in _COLUMNS
        and not knob.startswith("rule.")
        and (knob in _ALWAYS or value != plain.get(knob, unset[knob]))
    ]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
