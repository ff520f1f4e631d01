"""What there is to measure: names, order, and what is known of each metric. Values are tested in test_evaluate.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.metrics import METRICS, Samples, find_metric, metric_facts, metrics_for
from harness import plugins
from harness.errors import RefusedError, UnknownNameError
from tests.refusals import refuses

MINE = """
from evals import Metric

mine = Metric({name!r}, "of mine", {unit!r}, {better!r}, lambda samples, *k: 0.5)
"""


@pytest.fixture
def use(tmp_path: Path) -> Iterator[Any]:
    def use(name: str, unit: str = "fraction", better: str | None = "more") -> None:
        (tmp_path / "mine.py").write_text(MINE.format(name=name, unit=unit, better=better), encoding="utf-8")
        plugins.use(["mine"], [tmp_path])

    yield use
    plugins.use([], [])


def test_the_names_of_an_evaluation_in_the_order_of_records():
    assert list(metrics_for([1, 4])) == [
        "pass@1", "pass@4", "pass^1", "pass^4", "maj@1", "maj@4", "avg@n", "cons@n", "distinct_answers",
        "se_problems_pp", "se_samples_pp", "mean_tokens", "mean_tokens_correct", "mean_tokens_incorrect",
        "truncated_frac", "unparsed_frac", "ungraded_frac", "faulty_steps_frac",
    ]  # fmt: skip


def test_arms_are_compared_by_accuracies_alone():
    """A metric of which less is better once made the worse arm better."""
    comparing = {name for name, metric in METRICS.all().items() if metric.compares_arms}
    assert comparing == {"pass@{k}", "pass^{k}", "maj@{k}", "avg@n", "cons@n"}


def test_what_a_reader_of_records_must_know():
    assert metric_facts("pass@64") == {"unit": "fraction", "better": "more", "compares_arms": True}
    assert metric_facts("mean_tokens") == {"unit": "tokens", "better": "less", "compares_arms": False}


@pytest.mark.parametrize(("name", "near"), [("pas@1", "pass@"), ("pass@", "pass@"), ("avg@n2", "avg@n")])
def test_an_unknown_name_is_told_with_the_nearest(name, near):
    with pytest.raises(UnknownNameError, match=rf"unknown metric '{name}'.*{near}.*`bench ls metrics` lists all"):
        find_metric(name)


@pytest.mark.parametrize(
    ("name", "unit", "better", "after"),
    [
        ("best@{k}", "fraction", "more", "maj@1"),
        ("half", "fraction", "more", "avg@n"),
        ("size", "count", None, "cons@n"),
    ],
)
def test_that_of_a_plug_in_stands_among_its_like(use, name, unit, better, after):
    use(name, unit, better)
    names = list(metrics_for([1]))
    mine = name.replace("{k}", "1")
    assert mine in names[names.index(after) :][:3]
    assert metric_facts(mine)["compares_arms"] == (better == "more")
    plugins.use([], [])
    assert mine not in metrics_for([1])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("f.5",), "the metric f.5 has a full stop in its name"),
        (
            ("f", "percent"),
            "the metric f has unit='percent' and better='more': unit must be one of 'count', ",
        ),
        (("f", "count", "most"), "the metric f has unit='count' and better='most': unit must be one of"),
    ],
)
def test_a_faulty_metric_is_refused_when_it_is_made(use, given, says):
    with pytest.raises(RefusedError, match=re.escape(says)):
        use(*given)


def test_what_is_no_number_is_refused(use):
    use("mine")
    metric = replace(find_metric("mine"), compute=lambda samples: float("nan"))
    with pytest.raises(RefusedError, match="the metric mine returned nan: it must return a finite number"):
        metric.value(Samples([]), None)


def test_two_metrics_of_one_name_are_refused(use):
    use("pass@8")
    metrics_for([1])
    with refuses(RefusedError, "evals.duplicate_metric_name", name="pass@8", metric="pass@8"):
        metrics_for([8])
