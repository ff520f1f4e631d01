"""`bench plan`: what a sweep would run, without running it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from harness.cli.console import print_json, print_table, print_text
from harness.cli.executor import ChosenExecutor, ExecutorOption
from harness.cli.options import (
    ArmsOption,
    EvalSamplesOption,
    HomeOption,
    JsonOption,
    ProfileOption,
    SeedsOption,
    SetOption,
    SweepArgument,
    TrustOption,
    question_in,
    with_eval_samples,
    words,
)
from harness.errors import few
from harness.runs import home_of
from harness.words import said

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec
    from harness.plan import Plan, PlannedCell
    from harness.plan.expected_time import ExpectedTime, Pace
    from harness.plan.filing import Change
    from harness.plan.plan import PlannedCost
    from harness.records import CellRecord

# The sd of paired differences if neither cells nor the profile give one; 2 pp is common on full benchmarks.
ASSUMED_SD_PP = 2.0
MOST_NAMED_KNOBS = 8


class PlannedCellRow(TypedDict):
    """A cell as `--json` shows it."""

    arm: str
    seed: int
    hash: str | None
    """None before the search of its arm."""
    state: str
    lacks: str | None
    evaluation: str


class PlannedSearchRow(TypedDict):
    """The search that tunes an arm, as `--json` shows it."""

    arm: str
    search: str
    knobs: list[str]
    trials: int
    ended: int
    """The trials that have ended."""
    seeds: list[int]
    values: dict[str, object] | None
    """The best setting; None before the search has ended."""


@dataclass(frozen=True)
class Detectable:
    """The smallest difference that the design detects at 80 % power in each of its contrasts."""

    pp: float | None
    """None with too few replicates for a test."""
    origin: str
    """Where the sd comes from."""
    sd_pp: float
    contrasts: int

    @classmethod
    def of(cls, planned: Plan, sd_pp: float, origin: str, n: int, contrasts: int) -> Detectable:
        """Return what n replicates detect, if paired differences vary by sd_pp."""
        from reports.statistics import MIN_PAIRS, power

        # Bonferroni: the contrasts share the level.
        alpha = planned.sweep.compare.alpha / contrasts
        value = power(sd_pp, n=n, alpha=alpha).effect if n >= MIN_PAIRS and sd_pp > 0 else None
        return cls(value, origin, sd_pp, contrasts)


@dataclass(frozen=True)
class PlanView:
    """A plan with all that `bench plan` shows of it."""

    planned: Plan
    cells: list[PlannedCellRow]
    changes: list[Change]
    searches: list[PlannedSearchRow]
    warnings: list[str]
    cost: PlannedCost
    time: ExpectedTime | None
    detectable: Detectable

    def as_json(self) -> dict[str, object]:
        """Return the document that --json prints."""
        planned, gate, found = self.planned, self.planned.gate, self.detectable
        return {
            "sweep": planned.sweep.name,
            "profile": planned.profile,
            "checkpoint": planned.request.checkpoint,
            "cells": self.cells,
            "changes": [
                {"arm": one.cell.arm, "finished": one.finished.path.name, "knobs": one.knobs} for one in self.changes
            ],
            "searches": self.searches,
            "gate": {
                "ok": gate.ok,
                "differs": gate.differs,
                "violations": [{"field": knob, "values": values} for knob, values in gate.violations.items()],
            },
            "noops": [{"arms": n.arms, "reasons": n.reasons, "refused": n.refused} for n in planned.noops],
            "leave_one_out": planned.sweep.leave_one_out,
            "warnings": self.warnings,
            "cost": self.cost.as_json(),
            "time": None if self.time is None else self.time.as_json(),
            "screening": None if planned.sweep.screening is None else planned.sweep.screening.model_dump(),
            "detectable_pp": {
                "value": found.pp,
                "from": found.origin,
                "sd_pp": found.sd_pp,
                "contrasts": found.contrasts,
            },
        }

    def print(self) -> None:
        """Print the plan for people, in the order of the document."""
        from harness.cli.live import duration
        from harness.plan import expected_time
        from harness.plan.designs import RECIPE
        from harness.plan.memory import in_words

        planned, cost, found = self.planned, self.cost, self.detectable
        checkpoint, screening = planned.request.checkpoint, planned.sweep.screening
        evaluated = f", evaluating {checkpoint} as it is" if checkpoint else ""
        print_text(f"sweep {planned.sweep.name} on profile {planned.profile}{evaluated}")
        if self.searches:
            print_table("", ["arm", "trials", "seeds", "best setting"], [_search_row(row) for row in self.searches])
            print_text("Each arm is tuned first; the comparison uses each arm's best setting and fresh seeds.")
            print()
        # Cells over one checkpoint share its hash and differ in their evaluation.
        rows = [
            [row["arm"], str(row["seed"]), ((row["evaluation"] if checkpoint else row["hash"]) or "")[:10], _state(row)]
            for row in self.cells
        ]
        print_table("", ["arm", "seed", "hash", "state"], rows)
        for sentence in _changes_in_words(self.changes):
            print_text(sentence)
        gate = planned.gate
        print_text(f"gate: {'ok' if gate.ok else 'REFUSED'}; arms differ in {_in_words(gate.differs)}")
        if planned.sweep.leave_one_out:
            print_text(f"leave one out: each arm but {RECIPE} puts one knob of the recipe back to its ordinary value")
        for warning in self.warnings:
            print_text(f"warning: {warning}")
        at_most, read_again, taught = cost.eval_samples_at_most, cost.scored_tokens_at_most, cost.teacher_tokens_at_most
        samples = "all problems'" if at_most is None else f"{at_most:,}"
        generated = [f"at most {cost.generated_tokens_at_most:,} generated tokens"]
        generated += [f"{read_again:,} scored for rewards"] if read_again else []
        generated += [f"{taught:,} scored by teachers"] if taught else []
        training = "" if checkpoint else f"{', '.join(generated)} and "
        print_text(f"cost: {cost.cells} cells, {training}{samples} evaluation samples")
        print_text(f"memory: {in_words(cost.memory)}")
        print_text(f"time: {expected_time.in_words(self.time, duration)}")
        if screening is not None:
            print_text(
                f"screening: these cells rank the arms; the best {screening.best} and the baseline are then trained on "
                f"{screening.seeds} fresh seeds, {(screening.best + 1) * screening.seeds} cells more"
            )
        if found.pp is not None:
            shared = f", {found.contrasts} contrasts" if found.contrasts > 1 else ""
            print_text(f"detectable effect at 80% power: {found.pp:.1f} pp (from {found.origin}{shared})")


def plan(
    sweep: SweepArgument,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    eval_samples: EvalSamplesOption = None,
    arms: ArmsOption = None,
    time: Annotated[
        bool,
        typer.Option("--time", help=said("cli.help_plan_time")),
    ] = False,
    executor: ExecutorOption = "local",
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show cells, gate, warnings, cost, time and power of a sweep. Exits 3 if the arms cannot be compared.

    If a changed setting means that finished cells must be trained again, it lists the changes, old -> new.

    Example: bench plan sweeps/std_norm.yaml --set train.steps=30

    Example: bench plan std_norm --executor ray
    """
    from harness.plan import make_plan
    from harness.plan.filing import changes
    from harness.plan.tuning import with_known_tuning

    folder = home_of(sweep, home)
    given = question_in(folder, sweep, asks_anew=bool(profile or set_ or arms))
    where = ChosenExecutor(executor, folder)
    asked = make_plan(given, profile, with_eval_samples(set_, eval_samples), seeds, words("--arms", arms), where.on_gpu)
    # Arms whose search has ended already have their settings, and so a hash.
    planned = with_known_tuning(asked, folder)
    if time:
        planned.require_answerable()
    records = planned.records(folder)
    standing = [(cell, record.state, record.lacks) for cell, record in zip(planned.cells, records, strict=True)]
    searches = _searches(planned, folder)
    searched = _search_cells(planned, searches)
    expected = _expected_time(planned, where, standing, searched, time)
    # Before its search, an arm's settings are unknown, and the hash of the untuned ones would mislead.
    cells = [
        PlannedCellRow(
            arm=cell.arm,
            seed=cell.seed,
            hash=None if cell.arm in planned.to_tune else cell.hash,
            state="after its search" if cell.arm in planned.to_tune else state,
            lacks=lacks,
            evaluation=cell.evaluation,
        )
        for cell, state, lacks in standing
    ]
    missing = [
        cell for cell, state, lacks in standing if lacks and state != "damaged" and cell.arm not in planned.to_tune
    ]
    view = PlanView(
        planned,
        cells,
        changes(missing, planned.folder(folder) / "cells"),
        searches,
        planned.warnings + where.shortages(planned.arms, where.at_once(planned.arms.values())),
        # The trials that are left count as cells.
        replace(planned, cells=[*searched, *planned.cells]).cost(),
        expected,
        _detectable(planned, records),
    )
    if json:
        print_json(view.as_json())
    else:
        view.print()
    planned.require_answerable()


def _expected_time(
    planned: Plan,
    where: ChosenExecutor,
    standing: Sequence[tuple[PlannedCell, str, str | None]],
    searched: Sequence[PlannedCell],
    may_measure: bool,
) -> ExpectedTime | None:
    """Return the time of the cells that `bench run` would start, in its order.

    standing: each cell, its state and what it still lacks. searched: cells that searches train before.
    """
    from harness.plan.expected_time import expected_time

    def measure(spec: RunSpec) -> Pace:
        """Measure the pace of one training step in a temporary folder."""
        from harness.cli.live import LiveRun
        from harness.run.timed_step import timed_pace

        with LiveRun() as live:
            return timed_pace(spec, where.home, lambda aside: ChosenExecutor("local", aside).opener([spec])(1), live)

    # `bench run` starts all arms of one seed before the next.
    by_seed = sorted(standing, key=lambda one: one[0].seed)
    missing = [(cell.spec, lacks) for cell, state, lacks in by_seed if state not in ("done", "invalid")]
    specs = [cell.spec for cell in searched]
    specs += [spec for spec, lacks in missing if lacks != "evaluation" and not spec.checkpoint]
    only_evaluated = [spec for spec, lacks in missing if lacks == "evaluation" or spec.checkpoint]
    at_once = min(where.at_once(planned.arms.values()), max(1, len(searched) + len(missing)))
    return expected_time(specs, where.home, at_once, measure if may_measure else None, only_evaluated)


def _searches(planned: Plan, home: Path) -> list[PlannedSearchRow]:
    """Return a row for each arm that is tuned first; [] without `tune`."""
    from harness.plan.tuning import arm_searches, ended_trials

    return [
        {
            "arm": arm,
            "search": search.sweep.name,
            "knobs": list(search.search.knobs),
            "trials": (trials := search.search.budget.trials or 0),
            "ended": len(ended_trials(search.folder(home), trials)),
            "seeds": search.seeds,
            "values": planned.request.tuned[arm].values if arm in planned.request.tuned else None,
        }
        for arm, search in arm_searches(planned.request).items()
    ]


def _search_cells(planned: Plan, rows: Sequence[PlannedSearchRow]) -> list[PlannedCell]:
    """Return the cells that searches still have to train.

    Each has its arm's untuned settings, which cost about as much as tuned ones.
    """
    from harness.plan import PlannedCell
    from harness.plan.tuning import arm_searches

    searches = arm_searches(planned.request)
    return [
        PlannedCell(row["arm"], seed, searches[row["arm"]].spec({}, seed), "", "")
        for row in rows
        if row["values"] is None
        for seed in row["seeds"]
        for _ in range(row["trials"] - row["ended"])
    ]


def _detectable(planned: Plan, records: Sequence[CellRecord]) -> Detectable:
    """Return the smallest difference that the design detects.

    In a screening, the seeds are those that confirm its best arms. The sd is that of finished pairs if there are two,
    else the profile's, else assumed.
    """
    from reports.measure.interactions import declared_names

    if planned.request.checkpoint is not None:
        return _detectable_over_problems(planned, records)
    screening = planned.sweep.screening
    declared = declared_names(planned.grid, [*planned.arms], planned.baseline)
    n_contrasts = max(1, len(declared)) if screening is None else screening.best
    seeds = len(planned.request.seed_list) if screening is None else screening.seeds
    sd, origin = _paired_sd_pp(planned, records)
    # The sd of a factorial's effect follows from that of a pair.
    sd *= max((contrast.sd_ratio for contrast in declared), default=1.0)
    return Detectable.of(planned, sd, origin, seeds, n_contrasts)


def _detectable_over_problems(planned: Plan, records: Sequence[CellRecord]) -> Detectable:
    """Return the smallest detectable difference if problems are replicated.

    Before there are answers, their noise is assumed to be the largest possible, and the effect of an arm the same on
    every problem. The single sample of a greedy arm is the least certain, however many the others have.
    """
    from reports.measure.contrasts import differences_by_problem, pair_by_seed
    from reports.measure.measurements import Measurement, TaskMetric

    metric = TaskMetric(planned.metric_task, planned.metric_name)
    treatments = [arm for arm in planned.arms if arm != planned.baseline] or [planned.baseline]
    done = [record for record in records if record.state == "done"]
    measured = {arm: [Measurement(cell, metric) for cell in done if cell.arm == arm] for arm in planned.arms}
    paired = [pair_by_seed(measured[arm], measured[planned.baseline]) for arm in treatments]
    if differences := [differences_by_problem(pairs) for pairs in paired if pairs]:
        n, origin = min(map(len, differences)), "finished cells"
        sd = max(statistics.stdev(one) for one in differences) if n > 1 else 0.0
    else:
        n, origin = planned.first_spec.eval.problems or 0, "the largest possible sampling noise"
        # The variance p(1 - p) of one sample is at most 0.25, where every problem is solved half the time.
        noise = {arm: 0.25 / _samples_of_a_problem(planned, arm) for arm in planned.arms}
        sd = 100 * math.sqrt(max(noise[arm] for arm in treatments) + noise[planned.baseline])
    return Detectable.of(planned, sd, origin, n, max(1, len(planned.arms) - 1))


def _samples_of_a_problem(planned: Plan, arm: str) -> int:
    """Return how many different samples an arm over a checkpoint has per problem."""
    from evals.tasks import get_task

    spec = planned.arms[arm].eval
    task = get_task(planned.metric_task_as_given)
    # Another seed changes nothing of what has no noise.
    return 1 if spec.is_greedy or task.gives_choices else spec.samples * len(planned.request.seed_list)


def _paired_sd_pp(planned: Plan, records: Sequence[CellRecord]) -> tuple[float, str]:
    """Return the sd of paired differences in pp, and its origin."""
    from harness.plan.profile import MeasuredSpread

    differences = _finished_differences_pp(planned, records)
    if len(differences) >= 2:
        return statistics.stdev(differences), "finished cells"
    measured = MeasuredSpread.of(planned.request.profile_path)
    sd_pp = measured.sd_pp_under(planned.first_spec.eval, planned.metric_task) if measured is not None else None
    return (ASSUMED_SD_PP, "assumed sd") if sd_pp is None else (sd_pp, f"profile {planned.profile}")


def _finished_differences_pp(planned: Plan, records: Sequence[CellRecord]) -> list[float]:
    """Return the differences (pp) of the first contrast's finished pairs."""
    treatment = next((arm for arm in planned.arms if arm != planned.baseline), planned.baseline)
    scores: dict[tuple[str, int], float] = {}
    for cell in records:
        for row in cell.read_scores() if cell.arm in (treatment, planned.baseline) else ():
            if row["final"] and row["task"] == planned.metric_task:
                score = row["metrics"].get(planned.metric_name)
                if score is not None:
                    scores[cell.arm, cell.seed] = 100 * score
    pairs = [
        (scores.get((treatment, seed)), scores.get((planned.baseline, seed))) for seed in planned.request.seed_list
    ]
    return [a - b for a, b in pairs if a is not None and b is not None]


def _in_words(knobs: Sequence[str]) -> str:
    """Return the names of knobs, or only the number for a section with many."""
    by_section: dict[str, list[str]] = {}
    for knob in knobs:
        by_section.setdefault(knob.partition(".")[0], []).append(knob)
    # Algorithms of two families share no knob, so all knobs of both would be listed.
    named = [
        ", ".join(within) if len(within) <= MOST_NAMED_KNOBS else f"{section} ({len(within)} knobs, see --json)"
        for section, within in by_section.items()
    ]
    return ", ".join(named) or "nothing"


def _changes_in_words(changes: Sequence[Change]) -> list[str]:
    """Return what differs from finished cells, with one sentence for all arms that share the change."""
    from harness.settings.words import written

    by_knobs: dict[str, list[Change]] = {}
    for one in changes:
        changed = [f"{knob} {written(old)} -> {written(new)}" for knob, (old, new) in one.knobs.items()]
        more = len(changed) - MOST_NAMED_KNOBS
        shown = ", ".join(changed[:MOST_NAMED_KNOBS]) + (f" and {more} more (see --json)" if more > 0 else "")
        same = "no knob, so data, the model's files, the code of a plug-in or bench's numerics"
        by_knobs.setdefault(shown or same, []).append(one)
    return [
        f"changed in {few([one.cell.arm for one in those])} against "
        f"{few([one.finished.path.name for one in those], 2)}: {shown}"
        for shown, those in by_knobs.items()
    ]


def _search_row(row: PlannedSearchRow) -> list[str]:
    from harness.plan.tuning import in_words

    first, *_, last = row["seeds"]
    unknown = f"known after the search of {', '.join(row['knobs'])}"
    best = unknown if row["values"] is None else in_words(row["values"])
    return [row["arm"], f"{row['ended']}/{row['trials']}", f"{first} to {last}", best]


def _state(row: PlannedCellRow) -> str:
    return f"{row['state']}, only its evaluation" if row["lacks"] == "evaluation" else row["state"]
