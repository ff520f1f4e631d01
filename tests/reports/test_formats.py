from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.formats import Table, csv_table, in_words, interval, latex_table, whole_percent


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (-0.01, 0.4, "[-0.01, +0.4]"),
        (0.04, 0.4, "[+0.04, +0.4]"),
        (0.05, 0.4, "[+0.1, +0.4]"),
        (-0.4, -0.003, "[-0.4, -0.003]"),
        (-0.4, 0.049, "[-0.4, +0.05]"),
        (-3e-9, 0.4, "[-3e-09, +0.4]"),
        (-0.0, 0.0, "[+0.0, +0.0]"),
        (math.nan, 0.4, "–"),
    ],
)
def test_an_end_that_rounds_to_0_shows_the_digit_that_its_sign_hangs_on(low, high, written):
    assert interval(low, high) == written


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [(0.0004, 0.8, "[0.0004, 0.80]"), (-0.003, 0.8, "[-0.003, 0.80]"), (0.0, 0.8, "[0.00, 0.80]")],
)
def test_a_correlations_bound_that_rounds_to_0_shows_another_digit(low, high, written):
    assert interval(low, high, signed=False, decimals=2) == written


@given(st.floats(-10, 10))
def test_an_end_never_hides_on_which_side_of_0_it_lies(end):
    written = interval(end, end).strip("[]").split(", ")[0]
    assert math.copysign(1, float(written)) == math.copysign(1, end + 0.0)
    assert (float(written) == 0) == (end == 0)


def test_a_table_for_a_paper_or_a_spreadsheet():
    table = Table("results", ["arm", "pass@1 (%)"], [["no_std & $x^2$", "80.0 ± 1"], ['a "b", c', "–"]])
    assert list(csv.reader(io.StringIO(csv_table(table)))) == [table.columns, *table.rows]
    text = latex_table(table)
    row = r"no\_std \& \$x\textasciicircum{}2\$ & 80.0 $\pm$ 1 \\"
    assert row in text and r"(\%) \\" in text
    assert text.startswith("\\begin{tabular}{ll}\n\\toprule\n") and text.endswith("\\bottomrule\n\\end{tabular}\n")


@pytest.mark.parametrize(
    ("fraction", "written"),
    [
        (0.0, "0%"),
        (1e-9, "<1%"),
        (0.00403, "<1%"),
        (0.006, "1%"),
        (0.43, "43%"),
        (0.9949, "99%"),
        (0.996, ">99%"),
        (1.0, "100%"),
    ],
)
def test_only_nothing_is_0_percent_and_only_everything_is_100(fraction, written):
    assert whole_percent(fraction) == written


def test_items_are_joined_as_in_a_sentence():
    assert [in_words(["a"]), in_words(["a", "b"]), in_words(["a", "b", "c"], "or")] == ["a", "a and b", "a, b or c"]
