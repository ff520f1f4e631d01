"""`bench power`: seeds for an effect and the effect of the seeds, from finished cells or an assumed spread."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reports.statistics import power, sd_upper_bound
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import write_sweep_file
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import write_sweep

SCORES = {"base": [0.50, 0.52, 0.51, 0.55], "up": [0.53, 0.56, 0.57, 0.58]}
DIFFERENCES_PP = [3.0, 4.0, 6.0, 3.0]


def changes(arms: dict[str, list[float]] = SCORES) -> dict[tuple[str, int], dict[str, Any]]:
    return {(arm, seed): {"score": score} for arm, scores in arms.items() for seed, score in enumerate(scores)}


@pytest.mark.slow
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
    out = bench("power", "mine", "--effect", "2 pp").out
    sd = statistics.stdev(DIFFERENCES_PP)
    seeds, safe = (power(spread, effect=2.0).n for spread in (sd, sd_upper_bound(sd, 4)))
    row = ["up", "1.41", "0.79", str(seeds), str(safe), "4", f"{power(sd, n=4).effect:.1f}"]
    assert out.splitlines()[-1].split() == row
    frozen("cli/power_effect", out)


def test_a_spread_with_flagged_seeds_says_so(bench: Bench, tmp_path: Path) -> None:
    flagged = {("up", 2): {"score": 0.05, "flags": ["nan"]}}
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0}, seeds=4, changes=changes() | flagged)
    (row,) = bench("power", "mine", "--effect", "2pp", "--json").document["contrasts"]
    rest = statistics.stdev([3.0, 4.0, 3.0])
    assert row["flagged_seeds"] == [2]
    assert row["sd_unflagged_pp"] == pytest.approx(rest)
    assert row["sd_pp"] > 20
    assert f" {rest:.2f} pp" in bench("power", "mine", "--effect", "2pp").out.splitlines()[-1]


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


def test_an_assumed_spread_goes_before_that_of_the_records(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0}, seeds=4, changes=changes())
    document = bench("power", "mine", "--effect", "2pp", "--sd", 5, "--json").document
    assert (document["from"], document["contrasts"][0]["n_seeds"]) == ("assumed sd", 4)
    shipped = bench("power", "std_norm", "--effect", "2pp", "--sd", 2, "--json").document
    assert [row["arm"] for row in shipped["contrasts"]] == ["no_std", "batch_std"]


@pytest.mark.slow
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
    frozen("cli/power_unknown", bench("power", "mine", "--effect", "2pp").out + bench("power", "mine").out)


SD_2 = ("--effect", "2pp", "--sd", "2")
REFUSED: list[tuple[tuple[str, ...], str, Mapping[str, object]]] = [
    (("--effect", "2"), "cli.effect_without_unit", {"given": "2"}),
    (("--effect", "2%"), "cli.effect_without_unit", {"given": "2%"}),
    (("--effect", "twopp"), "cli.effect_not_a_number", {"text": "two"}),
    *(
        (("--effect", given), "cli.effect_out_of_range", {"given": given})
        for given in ("0pp", "-2pp", "nanpp", "200pp")
    ),
    (("--effect", "1e-300pp"), "cli.effect_out_of_range", {"min_pp": 0.001}),
    (("--effect", "2pp", "--correlation", "0.5"), "cli.correlation_without_sd", {}),
    *((("--effect", "2pp", "--sd", sd), "cli.sd_out_of_range", {}) for sd in ("0", "1e300", "1e-300", "nan")),
    *(((*SD_2, "--correlation", value), "cli.correlation_out_of_range", {}) for value in ("1", "nan")),
    (("--sd", "2"), "cli.spread_without_effect", {}),
]


def test_bad_input(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 1.0}, seeds=3)
    for words, code, fields in REFUSED:
        bench("power", "mine", *words).refused(code, **fields)


def test_what_has_no_spread_says_what_to_give_instead(bench: Bench, tmp_path: Path) -> None:
    pending = {(arm, seed): {"state": "pending"} for arm in ("base", "up") for seed in range(2)}
    write_sweep(tmp_path / "runs" / "pending", {"base": 0.0, "up": 1.0}, seeds=2, changes=pending)
    write_sweep(tmp_path / "runs" / "single", {"base": 0.0, "up": 1.0}, seeds=1)
    crossed = {("base", 0): {"state": "failed"}, ("up", 1): {"state": "failed"}}
    write_sweep(tmp_path / "runs" / "unpaired", {"base": 0.0, "up": 1.0}, seeds=2, changes=crossed)
    lost = write_sweep(tmp_path / "runs" / "lost", {"base": 0.0, "up": 1.0}, seeds=3)
    rewrite_rows(lost, "scores.jsonl", lambda row: row | {"metrics": {}})
    for name, code in {
        "pending": "bench.no_cell_done",
        "single": "cli.too_few_pairs",
        "unpaired": "cli.too_few_pairs",
        "lost": "reports.metric_not_recorded",
        "never": "bench.no_records_of_sweep",
        "std_norm": "bench.no_records_of_sweep",
    }.items():
        result = bench("power", name, "--effect", "2pp")
        result.refused(code)
        assert " --sd 2 " in result.err, "what to give instead"


def test_one_arm_has_no_contrast(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=3)
    for more in ([], ["--sd", 2]):
        bench("power", "mine", "--effect", "2pp", *more).refused("cli.only_one_arm", sweep="mine")


def test_nan_scores_do_not_pair(bench: Bench, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 1.0}, seeds=4)
    scores = sweep.cells[0].path / "scores.jsonl"
    rows = [json.loads(line) | {"metrics": {"pass@1": None}} for line in scores.read_text().splitlines()]
    scores.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (row,) = bench("power", "mine", "--effect", "2pp", "--json").document["contrasts"]
    assert row["n_pairs"] == 3


@pytest.mark.slow
def test_without_an_effect_it_says_what_would_settle_each_contrast(bench: Bench, tmp_path: Path) -> None:
    open_ = changes({"base": [0.50, 0.52, 0.51, 0.55], "up": [0.53, 0.50, 0.57, 0.52]})
    write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 0.0, "far": 20.0}, seeds=4, changes=open_)
    up, far = bench("power", "mine", "--json").document["contrasts"]
    assert (up["verdict"], up["next_step"]["cheapest"]) == ("inconclusive", "seeds")
    assert (far["verdict"], far["next_step"]) == ("better", None)
    frozen("cli/power", bench("power", "mine").out)
