"""What would settle a contrast: by parts of the variance that a test chooses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.records import SweepRecord
from harness.records.files import append_jsonl
from harness.records.looks import Evaluation, PlannedLooks
from harness.records.sweep import Asked, TunedArm, Tuning
from reports.figures.variance import draw_variance
from reports.measure import Analysis, analyse, next_step
from reports.measure.looks import looking
from reports.measure.measurements import Measurement, TaskMetric
from reports.measure.variance import declared_budgets
from reports.page.document import report_document
from reports.page.next_step import next_step_sentence, what_to_do
from reports.report import BestDifference, ContrastRow, NextStep, Way
from reports.statistics import TARGET_POWER, equivalence_power, sd_upper_bound, t_test_power
from tests.frozen import frozen
from tests.reports.rewriting import changed, rewrite_rows, write_samples
from tests.reports.synthetic import TASK, write_sweep

SEEDS = 8
PROBLEMS, SAMPLES = 50, 4


def record_of(
    tmp_path: Path,
    seed_sd: float,
    effect: float = 0.0,
    unfinished: tuple[str, int] | None = None,
    gains: Mapping[str, float] | None = None,
    **fields: Any,
) -> SweepRecord:
    """Arms whose samples are right with a probability that varies by arm and seed. gains: by arm; two by default, of
    which the second gains `effect`."""
    random = np.random.default_rng(3)
    gains = {"base": 0.0, "up": effect} if gains is None else gains
    correct = {
        (arm, seed): random.random((PROBLEMS, SAMPLES)) < 0.5 + random.normal(0, seed_sd) + gain
        for arm, gain in gains.items()
        for seed in range(SEEDS)
    }
    changes: dict[tuple[str, int], dict[str, Any]] = {
        cell: {"score": float(samples.mean())} for cell, samples in correct.items()
    }
    if unfinished is not None:
        changes[unfinished] = {"state": "pending"}
    evaluation = {"samples": SAMPLES, "problems": PROBLEMS}
    folder = tmp_path / "mine"
    arms = dict.fromkeys(gains, 0.0)
    asked = {"file": "sweep.yaml", "profile": "tiny", "folder": "."}
    fields = {"asks": "this", "evaluation": evaluation, "asked": asked} | fields
    record = write_sweep(folder, arms, seeds=SEEDS, changes=changes, **fields)
    for cell in record.cells:
        if cell.state == "done":
            write_samples(cell, correct[cell.arm, cell.seed])
    return record


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> SweepRecord:
    return record_of(tmp_path_factory.mktemp("noisy"), seed_sd=0.03)


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> SweepRecord:
    return record_of(tmp_path_factory.mktemp("lossy"), seed_sd=0.06, effect=-0.02)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> SweepRecord:
    """A sweep over one checkpoint, whose problems are the replicates."""
    folder = tmp_path_factory.mktemp("checkpoint")
    record = record_of(folder, seed_sd=0.0, checkpoint="builtin:tiny", margin_pp=4.0)
    for cell in record.cells:
        (cell.path / "spec.json").write_text(json.dumps({"seed": cell.seed, "checkpoint": "builtin:tiny"}))
    return record


def design(last_seeds: int) -> PlannedLooks:
    looks = sorted({6, SEEDS, last_seeds})
    evaluation = Evaluation(samples=SAMPLES, problems=PROBLEMS)
    return PlannedLooks(question="this", looks=looks, seeds=[*range(looks[-1])], evaluation=evaluation, looks_before=0)


def step_of(record: SweepRecord) -> tuple[Analysis, NextStep | None]:
    analysis = analyse(record)
    return analysis, next_step.next_steps(analysis).get("up")


def by_kind(step: NextStep | None) -> dict[str, Way]:
    assert step is not None
    return {way.of: way for way in step.ways}


@pytest.mark.slow
def test_where_sampling_is_the_noise_evaluating_more_is_cheaper_than_seeds(tmp_path: Path) -> None:
    record = record_of(tmp_path, seed_sd=0.0005, margin_pp=5.5)
    rewrite_rows(record, "timing.jsonl", lambda row: row | {"eval_s": 0.1})
    _, step = step_of(record)
    ways = by_kind(step)
    assert step is not None and step.cheapest in ("samples", "problems")
    samples, problems, seeds = ways["samples"], ways["problems"], ways["seeds"]
    assert samples.needed is not None and samples.needed > SAMPLES
    for way, option in ((samples, "--eval-samples "), (problems, "--set eval.problems="), (seeds, "--seeds ")):
        assert way.command is not None and way.command.endswith(f"{option}{way.needed}")
    assert samples.level == pytest.approx(1 - 0.0125)
    assert samples.shrinks_frac > 0.8
    # A cell takes 40 steps of .36 s, and 4 s for four evaluations of 100 problems x 8 samples.
    assert seeds.needed is not None
    assert seeds.seconds == pytest.approx((seeds.needed - SEEDS) * 2 * (40 * 0.36 + 4))
    assert samples.seconds == pytest.approx(16 * (samples.needed - SAMPLES) * PROBLEMS * 4 / 3200)


def test_where_seeds_are_the_noise_more_samples_buy_nothing(tmp_path: Path) -> None:
    record = record_of(tmp_path, seed_sd=0.2)
    _, step = step_of(record)
    ways = by_kind(step)
    assert step is not None and step.cheapest == "seeds"
    assert ways["samples"].needed is None and ways["samples"].shrinks_frac < 0.1


def test_the_sentences(noisy: SweepRecord) -> None:
    """One of each kind, to be read."""
    seeds = Way(
        of="seeds",
        now=8,
        needed=20,
        shrinks_frac=1.0,
        cells=24,
        seconds=4000.0,
        level=0.98,
        command="bench run",
        limit=None,
    )
    samples = changed(seeds, of="samples", now=4, needed=16, shrinks_frac=0.9, cells=16, seconds=None, command=None)
    problems = changed(samples, of="problems", now=50, needed=None, shrinks_frac=0.3, cells=None)
    useless = changed(problems, of="samples", shrinks_frac=0.02)
    step = NextStep(target="equivalent", sd_pp=1.23, ways=[seeds, samples, problems], cheapest="samples", power=0.8)
    steps = [
        step,
        changed(step, target="difference", ways=[seeds, useless], cheapest="seeds"),
        changed(step, ways=[changed(problems, limit=60), useless], cheapest=None),
    ]
    row = ContrastRow(verdict="inconclusive", difference_pp=0.2, margin_pp=5.5, note="the spread is unknown")
    tuned = changed(row, bests=BestDifference(trials=8, difference_pp=-2.0))
    screened = noisy.model_copy(update={"screening": {"best": 1, "seeds": 6}})
    lines = [next_step_sentence(one, of) for one, of in [*((row, of) for of in steps), (tuned, steps[1])]]
    lines += [what_to_do(changed(row, verdict=verdict), noisy) for verdict in ("inconclusive", "no_test", "better")]
    lines += [what_to_do(row, screened), what_to_do(row, noisy.model_copy(update={"designs": [design(16)]}))]
    frozen("reports/next_step", "\n".join(lines))


@pytest.mark.slow
def test_the_effects_of_a_factorial_have_samples_and_problems_as_ways_too(tmp_path: Path) -> None:
    """Each in its own unit: an interaction has four times the variance of a main effect, so it takes more."""
    grid = {
        f"{clip}, {beta}": {"objective.rule.clip_high": clip, "objective.kl.beta": beta}
        for clip in (0.2, 0.28)
        for beta in (0.0, 0.1)
    }
    record = record_of(tmp_path, seed_sd=0.0005, gains=dict.fromkeys(grid, 0.0), grid=grid, margin_pp=4.0)
    analysis = analyse(record)
    steps = next_step.next_steps(analysis)
    main, interaction = (by_kind(steps[name]) for name in ("clip_high=0.28", "clip_high=0.28:beta=0.1"))
    assert [*main] == [*interaction] == ["seeds", "samples", "problems"]
    for ways, (_, budget) in zip((main, interaction), declared_budgets(analysis)[::2], strict=True):
        assert budget.components is not None
        of_samples = budget.components.parts_of_mean(new_problems=False)["sampling"].share.value
        assert ways["samples"].shrinks_frac == pytest.approx(of_samples)
    assert main["seeds"].needed is not None and interaction["seeds"].needed is not None
    assert interaction["seeds"].needed > 2 * main["seeds"].needed


def test_over_one_checkpoint_problems_settle_a_contrast_and_samples_shrink_their_noise(checkpoint: SweepRecord) -> None:
    analysis, step = step_of(checkpoint)
    ways = by_kind(step)
    (contrast,) = analysis.contrasts
    assert contrast.over_problems and contrast.comparison is not None and [*ways] == ["samples", "problems"]
    problems, alpha = ways["problems"], 1 - (ways["problems"].level or 0)
    assert problems.needed is not None and problems.shrinks_frac == pytest.approx(1)

    sd_pp = sd_upper_bound(contrast.comparison.sd, PROBLEMS)

    def power_of(n: int) -> float:
        return equivalence_power(4.0 / (sd_pp / n**0.5), n - 1, alpha)

    assert power_of(problems.needed) >= TARGET_POWER > power_of(problems.needed - 1)
    assert ways["samples"].shrinks_frac > 0.8, "problems differ by their samples alone"
    report = report_document(analysis)
    variance = report.contrasts[0].variance
    assert variance is not None and variance.new_problems is not None
    assert variance.new_problems.parts.keys() == {"sampling", "problems"}
    drawing = draw_variance(analysis)
    assert drawing is not None and len(drawing.rows) == 1


def test_problems_are_a_way_over_one_checkpoint_where_the_noise_of_samples_is_unknown(checkpoint: SweepRecord) -> None:
    """pass@k is no mean of samples; where all problems of a task are drawn, it has no way left."""
    record = checkpoint.model_copy(update={"metric": "eval.final.pass@4"})
    assert [*by_kind(step_of(record)[1])] == ["problems"]
    all_drawn = step_of(record.model_copy(update={"evaluation": Evaluation(samples=SAMPLES)}))[1]
    assert all_drawn is not None and (all_drawn.ways, all_drawn.cheapest) == ([], None)


def test_no_more_problems_are_asked_for_than_there_are(checkpoint: SweepRecord) -> None:
    record = checkpoint
    needed = by_kind(step_of(record)[1])["problems"].needed
    assert needed is not None and needed > PROBLEMS
    enough, too_few, all_drawn = (
        record.model_copy(update={"held_out": {TASK: n}}) for n in (needed, needed - 1, PROBLEMS)
    )
    assert by_kind(step_of(enough)[1])["problems"].needed == needed
    step = step_of(too_few)[1]
    assert by_kind(step)["problems"].needed is None
    assert by_kind(step)["problems"].limit == needed - 1
    assert "problems" not in by_kind(step_of(all_drawn)[1])


def test_the_number_counts_with_the_level_of_the_look_that_it_makes(lossy: SweepRecord) -> None:
    """The smallest that has the power at that level, and more than at the level of a first look."""
    analysis, step = step_of(lossy)
    seeds = by_kind(step)["seeds"]
    assert step is not None and seeds.needed is not None and seeds.level is not None
    (contrast,) = analysis.contrasts
    assert contrast.comparison is not None
    difference, sd = contrast.comparison.difference, float(np.std(contrast.differences_pp, ddof=1))
    sd = sd_upper_bound(sd, SEEDS)  # with the estimate alone, half of all designs would have too little power
    assert step is not None and step.sd_pp == pytest.approx(sd)

    def power_of(n: int, alpha: float) -> float:
        error = sd / n**0.5
        if step.target == "difference":
            return t_test_power(abs(difference) / error, n - 1, alpha)
        return equivalence_power(1.0 / error, n - 1, alpha)

    assert power_of(seeds.needed, 1 - seeds.level) >= TARGET_POWER > power_of(seeds.needed - 1, 1 - seeds.level)
    assert power_of(seeds.needed - 2, 0.05) >= TARGET_POWER
    shown = lossy.model_copy(update={"looks": [lossy.look], "seeds": list(range(seeds.needed))})
    assert 1 - looking(shown, 1).alpha == pytest.approx(seeds.level)


def test_samples_that_were_added_to_an_evaluation_have_the_price_of_the_first(tmp_path: Path) -> None:
    """timing.jsonl timed the evaluation that a cell was run with, and its samples only."""
    record = record_of(tmp_path, seed_sd=0.03)
    rewrite_rows(record, "timing.jsonl", lambda row: row | {"eval_s": 0.1})
    cell = record.cells[0]
    added = replace(cell, evaluation="c0ffee")
    added.evaluation_folder.mkdir(parents=True)
    finals = [{**row, "n_samples": 16 * row["n_samples"]} for row in cell.read_scores() if row["final"]]
    append_jsonl(added.scores, finals)
    first, topped_up = (Measurement(one, TaskMetric(TASK, "pass@1")) for one in (cell, added))
    assert first.sample_s is not None and topped_up.sample_s == first.sample_s
    first_s, topped_up_s = (next_step._cell_s(one) for one in (first, topped_up))
    assert first_s is not None and topped_up_s is not None
    more = topped_up.drawn_samples - first.drawn_samples
    assert more != 0 and topped_up_s - first_s == pytest.approx(more * first.sample_s)


def test_a_command_goes_on_with_the_records(noisy: SweepRecord) -> None:
    """By name alone they are asked as last; with --set a shipped sweep of that name is not."""
    asked = Asked(file="sweep.yaml", profile="tiny", folder=".", settings=["a.b=1"], arms=["base", "up"])
    record = noisy.model_copy(update={"asked": asked})
    by_name, everything = (
        "bench run mine --eval-samples 64",
        "bench run mine --profile tiny --set a.b=1 --seeds 8 --arms base,up --set x=2",
    )
    assert next_step._command(record, "--eval-samples", "64") == by_name
    assert next_step._command(record, "--set", "x=2") == everything
    assert next_step._command(record.model_copy(update={"asked": None}), "--seeds", "20") is None


def test_more_seeds_add_to_those_of_the_sweep(lossy: SweepRecord) -> None:
    """The fresh seeds of a confirmation: more of them share their data with those in hand, which widens the interval
    less than looks apart would."""
    fresh = lossy.model_copy(update={"seeds": [seed + 100 for seed in lossy.seeds]})
    asked = next_step._Asked(replace(analyse(lossy), sweep=fresh), 8, 0.1, 1)
    assert asked.alpha_after(seeds=asked._seeds(16)) > 0.0125
    assert asked._seeds(10) == [*range(100, 110)] and asked._seeds(2) == [100, 101]


@pytest.mark.slow
@pytest.mark.parametrize("why", ["settled", "unfinished", "looks left"])
def test_no_next_step(tmp_path: Path, why: str) -> None:
    effect = 0.4 if why == "settled" else 0.0
    unfinished = ("up", 7) if why == "unfinished" else None
    record = record_of(tmp_path, seed_sd=0.03, effect=effect, unfinished=unfinished)
    if why == "looks left":
        record = record.model_copy(update={"designs": [design(16)]})
    assert step_of(record)[1] is None


@pytest.mark.parametrize("last_seeds", [SEEDS, 16])
def test_only_a_design_with_a_later_look_has_looks_left(noisy: SweepRecord, last_seeds: int) -> None:
    record = noisy.model_copy(update={"designs": [design(last_seeds)]})
    assert next_step.has_planned_looks_left(record) == (last_seeds > SEEDS)


def test_equivalence_power_is_that_of_simulated_intervals() -> None:
    from scipy.special import stdtrit

    n, margin, alpha = 8, 1.3, 0.05
    values = np.random.default_rng(0).standard_normal((200_000, n))
    half_width = stdtrit(n - 1, 1 - alpha / 2) * values.std(axis=1, ddof=1) / n**0.5
    found = (np.abs(values.mean(axis=1)) + half_width <= margin).mean()
    assert equivalence_power(margin * n**0.5, n - 1, alpha) == pytest.approx(found, abs=0.004)


@pytest.mark.slow
@pytest.mark.parametrize(("left_sd_pp", "able"), [(0.0, True), (0.4, True), (5.0, False)])
def test_what_searches_of_tuned_arms_left_open_is_settled_by_no_seeds(
    lossy: SweepRecord, left_sd_pp: float, able: bool
) -> None:
    arm = TunedArm(
        digest="", trial=1, values={}, search_pp=50, default_pp=None, complete=8, generated_tokens=0, at_end=[],
        short_pp=0, short_sd_pp=left_sd_pp / math.sqrt(2),
    )  # fmt: skip
    tuning = Tuning(knobs=["train.learning_rate"], trials=8, seeds=[10**6], searches={}, arms={"base": arm, "up": arm})
    plain, step = step_of(lossy)[1], step_of(lossy.model_copy(update={"tuning": tuning}))[1]
    assert step is not None
    of_tuned, of_plain = by_kind(step)["seeds"], by_kind(plain)["seeds"]
    assert of_plain.needed is not None and (of_tuned.needed is not None) == able
    if of_tuned.needed is not None:
        assert (of_tuned.needed > of_plain.needed) == (left_sd_pp > 0)
