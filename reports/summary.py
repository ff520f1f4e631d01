"""What `bench run` prints at its end, from report.json alone: a table of arms and a sentence per contrast."""

from __future__ import annotations

from typing import Any

from reports.document import Report
from reports.formats import interval, number, p_value, percent, points, signed_pp, tokens
from reports.statistics import MIN_PAIRS, NO_SPREAD
from reports.table import Table


def verdict_sentences(report: Report) -> list[str]:
    """One sentence per contrast, in the sweep's order; one that says so where there is nothing to compare."""
    if not report["contrasts"]:
        return [f"One arm, {report['arms'][0]['arm']}: nothing to compare."]
    return [verdict_sentence(contrast) for contrast in report["contrasts"]]


def interim_sentence(report: Report) -> str | None:
    """What a look before the end must say; None once every cell has ended."""
    ended = sum(cell["state"] in {"done", "failed", "invalid"} for cell in report["cells"])
    total = len(report["cells"])
    if ended == total:
        return None
    return (
        f"Interim look: {ended} of {total} cells have ended. Levels and p values hold for the planned number of seeds, "
        "looked at once; who stops when a verdict pleases is wrong more often than they say."
    )


def verdict_sentence(contrast: dict[str, Any]) -> str:
    """Effect, interval, p after Holm, verdict, n, tokens and detectable effect of one contrast of report.json."""
    arm, baseline, n = contrast["arm"], contrast["baseline"], contrast["n_pairs"]
    name = metric_name(contrast)
    if contrast["verdict"] == "identical":
        return (
            f"{arm} is identical to {baseline}: the final weights of all {_pairs(contrast)} are equal,"
            f" {token_clause(contrast)}."
        )
    if n == 0:
        return f"{arm} against {baseline}: no test, no seed has a score in both arms."
    effect = f"{signed_pp(contrast['difference_pp'])} pp {name}"
    if contrast["verdict"] == "no_test":
        noise = ""
        if contrast["noise_low_pp"] is not None:
            noise = (
                f", 95% interval {interval(contrast['noise_low_pp'], contrast['noise_high_pp'])} from evaluation noise"
                " alone, which does not include training variance"
            )
        return (
            f"{arm} against {baseline}: no test below {MIN_PAIRS} seeds; {effect}{noise}; {_pairs(contrast)},"
            f" {token_clause(contrast)}."
        )
    return (
        f"{_verdict_clause(contrast)}: {effect},"
        f" {percent(contrast['level'])} interval {interval(contrast['low_pp'], contrast['high_pp'])},"
        f" p {p_value(contrast['p_holm'])}{' after Holm' if contrast['n_contrasts'] > 1 else ''}, {_pairs(contrast)},"
        f" {token_clause(contrast)}; {detectable_clause(contrast)}."
    )


def verdict_details(contrast: dict[str, Any]) -> list[str]:
    """What qualifies the sentence: missing pairs, the contrast without flagged cells, notes and warnings."""
    details = [f"Seed {pair['seed']} has no pair: {pair['reason']}." for pair in contrast["missing"]]
    without = contrast["without_flagged"]
    if without is not None:
        seeds = ", ".join(map(str, contrast["flagged_seeds"]))
        details.append(f"Without the flagged seeds ({seeds}): {_of_the_others(without)}.")
    if contrast["verdict"] in {"inconclusive", "equivalent"} and contrast["p_holm"] is not None:
        alpha = round((1 - contrast["level"]) * contrast["n_contrasts"], 9)
        if contrast["p_holm"] < alpha:
            details.append(
                f"p is below {alpha:.3g} after Holm, whose later steps are less strict than the interval, which holds "
                "0: the verdict goes by the interval."
            )
    if contrast["verdict"] == "equivalent":
        level = percent((1 - contrast["level"]) / 2)
        details.append(f"Equivalence: two one-sided tests at {level}, which is conservative.")
    if contrast["new_problems"] is not None:
        details.append(_over_new_problems(contrast["new_problems"]))
    if contrast["note"] and contrast["detectable_pp"] is not None:
        details.append(f"Note: {contrast['note']}.")
    return details + [f"{warning}." for warning in contrast["warnings"]]


def result_table(report: Report) -> Table:
    """A row per arm, best first: rank, final score with interval, difference from the baseline with its own."""
    contrasts = {contrast["arm"]: contrast for contrast in report["contrasts"]}
    first = report["arms"][0]
    equal = [contrast["equal_tokens"] for contrast in report["contrasts"] if contrast["n_pairs"]]
    budget = f" ({tokens(first['generated_tokens'])} generated)" if first["generated_tokens"] else ""
    title = f"{metric_name(first)} of {first['task']}" + (f" at equal tokens{budget}" if equal and all(equal) else "")
    columns = ["arm", "rank", f"{metric_name(first)} (%)", f"{percent(first['level'])} interval", "seeds"]
    columns += ["difference (pp)", "interval", "p (Holm)", "verdict"]
    ranked = sorted(report["arms"], key=lambda arm: (arm["rank"] is None, arm["rank"]))
    return Table(title, columns, [_result_row(arm, contrasts.get(arm["arm"])) for arm in ranked])


def metric_name(row: dict[str, Any]) -> str:
    """`eval.final.arithmetic.pass@1` -> `pass@1`."""
    return str(row["metric"]).rpartition(".")[2]


def token_clause(contrast: dict[str, Any]) -> str:
    """Whether both arms generated as many tokens, in the sentence's words, for a contrast that has a pair.

    It is said of every pair; unpaired, and in records from before pairs were kept apart, of the means.
    """
    if contrast["token_ratio"] is None:
        return f"tokens not compared: {contrast['baseline']} generated none"
    ratios = contrast.get("token_ratios") or [contrast["token_ratio"]]
    if contrast["equal_tokens"]:
        return f"at equal tokens (within {max(abs(ratio - 1) for ratio in ratios):.1%})"
    low, high = (f"{abs(end - 1):.1%} {'more' if end > 1 else 'fewer'}" for end in (min(ratios), max(ratios)))
    difference = low if low == high else f"pairs from {low} to {high}"
    return f"NOT at equal tokens ({difference} than {contrast['baseline']})"


def detectable_clause(contrast: dict[str, Any]) -> str:
    """The effect that the design detects, for a contrast that was tested; else the note why there is none."""
    detectable = contrast["detectable_pp"]
    return str(contrast["note"]) if detectable is None else f"detectable effect {points(detectable)} pp"


def _verdict_clause(contrast: dict[str, Any]) -> str:
    arm, baseline = contrast["arm"], contrast["baseline"]
    clauses = {
        "better": f"{arm} is better than {baseline}",
        "worse": f"{arm} is worse than {baseline}",
        "equivalent": f"{arm} is equivalent to {baseline} within {contrast['margin_pp']:g} pp",
        "inconclusive": f"{arm} against {baseline} is inconclusive",
    }
    return clauses[contrast["verdict"]]


def _of_the_others(without: dict[str, Any]) -> str:
    n = without["n_pairs"]
    if n == 0:
        return "no pair is left"
    effect = f"{signed_pp(without['difference_pp'])} pp"
    if without["verdict"] == "no_test":
        return f"{effect}, no test below {MIN_PAIRS} seeds, n = {n}"
    return f"{effect} {interval(without['low_pp'], without['high_pp'])}, {without['verdict']}, n = {n}"


def _over_new_problems(row: dict[str, Any]) -> str:
    if row["refused"]:
        return f"Over new problems: refused, {row['refused']}."
    effect = f"Over new problems of this kind as well as new seeds: {signed_pp(row['difference_pp'])} pp"
    low, high = row["low_pp"], row["high_pp"]
    n_seeds, n_problems = row["n_seeds"], row["n_problems"]
    if low is not None and low == high:
        return f"{effect}, {NO_SPREAD} over {n_seeds} seeds and {n_problems} problems."
    conservative = (
        " It is conservative, as a rule wider than its level asks for: its t has the"
        f" {min(n_seeds, n_problems) - 1} degrees of freedom of the fewer of the two, and the noise of single scores"
        " counts as that of seeds and of problems too."
    )
    return (
        f"{effect}, {percent(row['level'])} interval {interval(low, high)}, by a bootstrap over"
        f" {n_seeds} seeds and {n_problems} problems.{'' if low is None else conservative}"
    )


def _pairs(contrast: dict[str, Any]) -> str:
    n, missing = contrast["n_pairs"], len(contrast["missing"])
    return f"n = {n}{f' of {n + missing}' if missing else ''} {'pair' if n + missing == 1 else 'pairs'}"


def _result_row(arm: dict[str, Any], contrast: dict[str, Any] | None) -> list[str]:
    row = [
        arm["arm"],
        number(arm["rank"]),
        points(arm["mean_pp"]),
        interval(arm["low_pp"], arm["high_pp"], signed=False),
        str(arm["n"]),
    ]
    if contrast is None:
        return [*row, "baseline", "", "", ""]
    return [
        *row,
        signed_pp(contrast["difference_pp"]),
        interval(contrast["low_pp"], contrast["high_pp"]),
        p_value(contrast["p_holm"]).removeprefix("= "),
        contrast["verdict"].replace("_", " "),
    ]
