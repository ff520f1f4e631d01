"""The gate over settings that other tools recorded. Arms differ in declared knobs only, and seeds of an arm in none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import GateError, RefusedError
from harness.plan.gate import ABSENT, EVALUATION, covered, refused_lines
from harness.settings import dotted
from harness.shelves.imports.cells import Cells, cell_name
from harness.shelves.imports.sources import Pattern
from harness.words import said


@dataclass(frozen=True)
class Checked:
    """The outcome of the gate."""

    differs: list[str]
    """Declared knobs in which arms differ."""
    varied: dict[str, dict[str, object]]
    """The values of these knobs by arm."""
    passed_over: frozenset[str]
    """Settings that may differ, since they only say what a run is called or where it writes."""
    without: list[str]
    """The cells whose settings are unknown. With any of them, it is unknown whether the gate holds."""

    @property
    def ok(self) -> bool | None:
        return None if self.without else True


def read_configs(cells: Cells, text: str) -> None:
    """Add the settings of YAML or JSON files, found by the arm and the seed in their paths.

    Raises RefusedError for a cell without a file, and for a file that holds something else.
    """
    from evals.yaml_file import load_yaml

    pattern = Pattern(text)
    start = Path("/") if text.startswith("/") else Path()
    for path in sorted(start.glob(pattern.as_glob.removeprefix("/"))):
        names = pattern.names(str(path))
        for (arm, seed), run in cells.items():
            if names is not None and names.arm in (None, arm) and names.seed in (None, seed):
                run.config |= dotted(load_yaml(path))
    without = [cell_name(cell) for cell, run in cells.items() if not run.config]
    if without:
        raise RefusedError("shelves.imports.no_config", text=text, run=without[0])


def check_configs(
    cells: Cells, ablate: Sequence[str], co_changes: Mapping[str, str], bookkeeping: Collection[str]
) -> Checked:
    """Compare the settings of all cells, knob by knob.

    bookkeeping: last parts of names that are ignored. Raises GateError, which names every faulty knob with its values.
    Faulty is a knob in which arms differ undeclared, or in which seeds of an arm differ without a reason. A knob of the
    evaluation is faulty if any two cells differ in it, declared or not.
    """
    known = {cell: run.config for cell, run in cells.items() if run.config}
    without = [cell_name(cell) for cell in cells if cell not in known]
    knobs = dict.fromkeys(knob for config in known.values() for knob in config)
    differs, violations = [], {}
    passed_over = frozenset(knob for knob in knobs if knob.rpartition(".")[2] in bookkeeping)
    for knob in (knob for knob in knobs if knob not in passed_over):
        values = {cell: config.get(knob, ABSENT) for cell, config in known.items()}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            continue
        by_arm = {arm: [value for (of, _), value in values.items() if of == arm] for arm, _ in known}
        # An ablated knob may vary between arms, never between the seeds of one arm. Only a co-change, which has a
        # reason, may.
        one_each = all(value == of_arm[0] for of_arm in by_arm.values() for value in of_arm)
        declared = covered(knob, [*co_changes, *(ablate if one_each else ())])
        if knob.startswith(EVALUATION) or not declared:
            violations[knob] = (
                {arm: of_arm[0] for arm, of_arm in by_arm.items()}
                if one_each
                else {cell_name(cell): value for cell, value in values.items()}
            )
        else:
            differs.append(knob)
    if violations:
        undeclared, measured = refused_lines(violations)
        parts = [said("shelves.imports.arms_differ_undeclared", knobs=undeclared)] if undeclared else []
        if measured:
            parts.append(said("shelves.imports.arms_measured_differently", knobs=measured))
        raise GateError("\n".join(parts))
    # Reversed, so that an arm's first cell decides if its seeds differ.
    varied = {arm: {knob: config.get(knob, ABSENT) for knob in differs} for (arm, _), config in reversed(known.items())}
    return Checked(differs, varied, passed_over, without)
