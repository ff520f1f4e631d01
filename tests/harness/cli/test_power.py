"""`bench power`: seeds for an effect and the effect of the seeds, from finished cells or an assumed spread."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from reports.statistics import power, sd_upper_bound
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import write_sweep_file
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import write_sweep

SCORES = {"base": [0.50, 0.52, 0.51, 0.55], "up": [0.53, 0.56, 0.57, 0.58]}
DIFFERENCES_PP = [3.0, 4.0, 6.0, 3.0]


def changes(arms: dict[str, list[float]] = SCORES) -> dict[tuple[str, int], dict[str, Any]]:
    return {(arm, seed): {"score": score} for arm, scores in arms.items() for seed, score in enumerate(scores)}


def test_from_finished_cells(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0, "other": 1.0}, seeds=4, changes=changes())
    result = bench("power", "mine", "--effect", "2pp", "--json")
    assert (result.code, result.err) == (0, "")
    document = result.document
    assert set(document) == {"sweep", "effect_pp", "power", "alpha", "level", "from", "unit", "contrasts"}
    assert (document["sweep"], document["effect_pp"], document["power"]) == ("mine", 2.0, 0.8)
    assert (document["alpha"], document["level"], document["from"]) == (0.05, 0.975, "finished cells")
    assert document["unit"] == "seed"
    up, other = document["contrasts"]
    assert (up["arm"], up["baseline"], up["n_pairs"], other["arm"]) == ("up", "base", 4, "other")
    sd = statistics.stdev(DIFFERENCES_PP)
    assert up["sd_pp"] == pytest.approx(sd)
    assert up["correlation"] == pytest.approx(statistics.correlation(*SCORES.values()))
    assert up["seeds_needed"] == power(sd, effect=2.0, alpha=0.025).n
    assert up["sd_upper_pp"] == pytest.approx(sd_upper_bound(sd, 4))
    assert up["seeds_needed_upper"] == power(sd_upper_bound(sd, 4), effect=2.0, alpha=0.025).n > up["seeds_needed"]
    assert (up["n_seeds"], up["detectable_pp"]) == (4, pytest.approx(power(sd, n=4, alpha=0.025).effect))


def test_for_people(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0}, seeds=4, changes=changes())
    title, header, row = bench("power", "mine", "--effect", "2 pp").out.splitlines()
    assert title == "mine: seeds to find 2 pp against base at 80% power (spread from finished cells)"
    assert "seeds needed" in header and "80% upper bound" in header
    sd = statistics.stdev(DIFFERENCES_PP)
    seeds, safe = (power(spread, effect=2.0).n for spread in (sd, sd_upper_bound(sd, 4)))
    assert row.split() == ["up", "1.41", "0.79", str(seeds), str(safe), "4", f"{power(sd, n=4).effect:.1f}"]


def test_a_spread_with_flagged_seeds_says_so(bench: Bench, tmp_path: Path) -> None:
    flagged = {("up", 2): {"score": 0.05, "flags": ["nan"]}}
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0}, seeds=4, changes=changes() | flagged)
    (row,) = bench("power", "mine", "--effect", "2pp", "--json").document["contrasts"]
    rest = statistics.stdev([3.0, 4.0, 3.0])
    assert row["flagged_seeds"] == [2]
    assert row["sd_unflagged_pp"] == pytest.approx(rest)
    assert row["sd_pp"] > 20
    note = bench("power", "mine", "--effect", "2pp").out.splitlines()[-1]
    assert note == f"note on up: its sd is with the flagged seeds (2); without them it is {rest:.2f} pp"


@pytest.mark.parametrize(("correlation", "seeds"), [(None, 18), (0.6, 9), (0.8, 6)])
def test_from_an_assumed_spread_the_numbers_are_those_of_the_specification(
    bench: Bench, tmp_path: Path, correlation: float | None, seeds: int
) -> None:
    """A sweep that was never run, with one contrast: 2 pp at a run-to-run sd of 2 pp."""
    sweep = write_sweep_file(tmp_path)
    given = [] if correlation is None else ["--correlation", correlation]
    document = bench("power", sweep, "--effect", "2pp", "--sd", 2, *given, "--json").document
    (row,) = document["contrasts"]
    assert document["from"] == "assumed sd"
    assert row["seeds_needed"] == seeds
    assert row["sd_pp"] == pytest.approx(2 * math.sqrt(2 * (1 - (correlation or 0))))
    assert (row["n_pairs"], row["n_seeds"], row["seeds_needed_upper"]) == (0, 12, None)
    assert row["detectable_pp"] == pytest.approx(power(row["sd_pp"], n=12).effect)
    text = bench("power", sweep, "--effect", "2pp", "--sd", 2, *given).out
    assert "upper bound" not in text and f" {seeds} " in text


def test_an_assumed_spread_goes_before_that_of_the_records(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0}, seeds=4, changes=changes())
    document = bench("power", "mine", "--effect", "2pp", "--sd", 5, "--json").document
    assert (document["from"], document["contrasts"][0]["n_seeds"]) == ("assumed sd", 4)
    shipped = bench("power", "std_norm", "--effect", "2pp", "--sd", 2, "--json").document
    assert [row["arm"] for row in shipped["contrasts"]] == ["no_std", "batch_std"]


def test_a_contrast_with_too_few_pairs_or_an_unknown_spread_has_a_dash(bench: Bench, tmp_path: Path) -> None:
    """Nothing is planned with a spread that the verdict takes to be unknown: 3 seeds would seem to find any effect."""
    same = {"base": [0.5, 0.6, 0.7], "shifted": [0.6, 0.7, 0.8], "fine": [0.6, 0.7, 0.8005], "up": [0.51, 0.63, 0.70]}
    gone = {("broken", seed): {"state": "failed", "reason": "why"} for seed in (1, 2)}
    write_sweep(
        tmp_path / "runs" / "mine", dict.fromkeys([*same, "broken"], 0.0), seeds=3, changes=changes(same) | gone
    )
    shifted, fine, up, broken = bench("power", "mine", "--effect", "2pp", "--json").document["contrasts"]
    for row in (shifted, fine, broken):
        assert (row["sd_pp"], row["seeds_needed"], row["detectable_pp"]) == (None, None, None)
    assert up["seeds_needed"] > 3 and broken["n_pairs"] == 1
    assert bench("power", "mine", "--effect", "2pp").out.splitlines()[-1].startswith("–: ")
    steps = bench("power", "mine").out
    assert "shifted against base: inconclusive. What would settle it is unknown: all differences are" in steps
    assert "fine against base: inconclusive. What would settle it is unknown: the spread is below" in steps


REFUSED = [
    (("--effect", "2"), "give the difference in percentage points with its unit, e.g. 2pp"),
    (("--effect", "2%"), "--effect is '2%'"),
    (("--effect", "0.02"), "percentage points"),
    (("--effect", "twopp"), "'two' is not a number"),
    (("--effect", "0pp"), "pp to 100pp"),
    (("--effect", "-2pp"), "pp to 100pp"),
    (("--effect", "nanpp"), "pp to 100pp"),
    (("--effect", "200pp"), "pp to 100pp"),
    (("--effect", "2pp", "--correlation", "0.5"), "--correlation needs --sd too"),
    (("--effect", "1e-300pp"), "--effect is '1e-300pp': give 0.001pp to 100pp"),
    (("--effect", "2pp", "--sd", "0"), "--sd is 0"),
    (("--effect", "2pp", "--sd", "1e300"), "--sd is 1e+300"),
    (("--effect", "2pp", "--sd", "1e-300"), "--sd is 1e-300"),
    (("--effect", "2pp", "--sd", "nan"), "--sd is nan"),
    (("--effect", "2pp", "--sd", "2", "--correlation", "1"), "--correlation is 1"),
    (("--effect", "2pp", "--sd", "2", "--correlation", "nan"), "--correlation is nan"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "says"), REFUSED)
def test_bad_input(bench: Bench, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 1.0}, seeds=3)
    result = bench("power", "mine", *words)
    assert (result.code, result.out) == (2, "")
    assert says in result.err and "Traceback" not in result.err


def test_what_has_no_spread_says_what_to_give_instead(bench: Bench, tmp_path: Path) -> None:
    pending = {(arm, seed): {"state": "pending"} for arm in ("base", "up") for seed in range(2)}
    write_sweep(tmp_path / "runs" / "pending", {"base": 0.0, "up": 1.0}, seeds=2, changes=pending)
    write_sweep(tmp_path / "runs" / "single", {"base": 0.0, "up": 1.0}, seeds=1)
    crossed = {("base", 0): {"state": "failed"}, ("up", 1): {"state": "failed"}}
    write_sweep(tmp_path / "runs" / "unpaired", {"base": 0.0, "up": 1.0}, seeds=2, changes=crossed)
    lost = write_sweep(tmp_path / "runs" / "lost", {"base": 0.0, "up": 1.0}, seeds=3)
    rewrite_rows(lost, "scores.jsonl", lambda row: row | {"metrics": {}})
    for name, says in {
        "pending": "no cell is done",
        "single": "no contrast has 2 finished pairs",
        "unpaired": "no contrast has 2 finished pairs",
        "lost": "no finished cell of lost has a final 'pass@1'",
        "never": "no records in runs",
        "std_norm": "no records in runs",
    }.items():
        result = bench("power", name, "--effect", "2pp")
        assert (result.code, result.out) == (2, ""), name
        assert says in result.err and "--sd 2 --correlation 0.6" in result.err, name
        assert "Traceback" not in result.err


def test_one_arm_has_no_contrast(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=3)
    for more in ([], ["--sd", 2]):
        result = bench("power", "mine", "--effect", "2pp", *more)
        assert (result.code, result.err) == (2, "error: mine: one arm, so there is no contrast to find an effect in.\n")


def test_nan_scores_do_not_pair(bench: Bench, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 1.0}, seeds=4)
    scores = sweep.cells[0].path / "scores.jsonl"
    rows = [json.loads(line) | {"metrics": {"pass@1": None}} for line in scores.read_text().splitlines()]
    scores.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (row,) = bench("power", "mine", "--effect", "2pp", "--json").document["contrasts"]
    assert row["n_pairs"] == 3


def test_the_help_has_an_example(bench: Bench) -> None:
    assert "Example: bench power std_norm --effect 2pp" in bench("power", "--help").out


def test_without_an_effect_it_says_what_would_settle_each_contrast(bench: Bench, tmp_path: Path) -> None:
    open_ = changes({"base": [0.50, 0.52, 0.51, 0.55], "up": [0.53, 0.50, 0.57, 0.52]})
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0, "far": 20.0}, seeds=4, changes=open_)
    up, far = bench("power", "mine", "--json").document["contrasts"]
    assert (up["verdict"], up["next_step"]["cheapest"]) == ("inconclusive", "seeds")
    assert (far["verdict"], far["next_step"]) == ("better", None)
    first, second = bench("power", "mine").out.splitlines()
    assert first.startswith("up against base: inconclusive. Cheapest next step to show equivalence within ±1 pp")
    assert " seeds instead of 4 " in first
    assert second == "far against base: better. Nothing more is needed."
    refused = bench("power", "mine", "--sd", 2)
    assert (refused.code, "--effect" in refused.err) == (2, True)
