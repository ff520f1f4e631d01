from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.grading.numeric import parse_number, reference_number, same_number

READ = [
    ("18", 18), ("+7", 7), ("-5", -5), ("- 5", -5), ("007", 7), (".5", "1/2"), ("18.0", 18), ("18.50", "37/2"),
    # Thousands
    ("1,200", 1200), ("1,234,567.5", "2469135/2"), ("1{,}000", 1000), ("1\\,000", 1000), ("1 000", 1000),
    # Currency and percent
    ("$18", 18), ("\\$18", 18), ("-$5", -5), ("$-5", -5), ("$1,234.50 USD", "2469/2"), ("€ 3", 3), ("50%", 50),
    ("50\\%", 50),
    # Fractions and powers of ten
    ("3/4", "3/4"), ("6/8", "3/4"), ("\\frac{3}{4}", "3/4"), ("-\\dfrac{1}{2}", "-1/2"), ("\\frac{-1}{2}", "-1/2"),
    ("\\frac12", "1/2"), ("3\\frac{1}{2}", "7/2"), ("3 1/2", "7/2"), ("-3 1/2", "-7/2"), ("3½", "7/2"), ("½", "1/2"),
    ("1e3", 1000), ("1.5E-3", "3/2000"), ("2 \\times 10^{3}", 2000), ("2×10^3", 2000), ("5 million dollars", 5000000),
    ("18 dozen", 216), ("1.5 dozens", 18),
    # Units
    ("18 dollars", 18), ("18 dollars per day", 18), ("18\\text{ cm}^2", 18), ("18 cm^2", 18), ("18cm²", 18),
    ("18 km/h", 18),
    ("90^\\circ", 90), ("90^{\\circ}", 90), ("90°", 90), ("90 degrees", 90), ("18th", 18), ("5 m", 5), ("20°C", 20),
    # Mark-up and equations
    ("**18**", 18), ("$18$", 18), ("$$18.$$", 18), ("\\(18\\)", 18), ("\\text{18}", 18), ("18.", 18),
    ("x = 5", 5), ("3+5 = 8", 8), ("x = 2+3 = 5", 5), ("{18}", 18), ("\\displaystyle 18", 18), ("18 (dollars)", 18),
    ("11,\\! 111,\\! 100", 11111100), ("\\frac{270}7\\text{ degrees}", "270/7"), ("\\frac9{19}", "9/19"),
    ("\\frac{1.5}{2}", "3/4"), ("2 x 10^3", 2000),
    # Amounts of money in dollars and cents, decimals that repeat, an exact value before decimals that go on
    ("7 dollars and 25 cents", "29/4"), ("$7 and 25 cents", "29/4"), ("\\$7\\text{ and }5\\text{ cents}", "141/20"),
    ("2.\\overline{6}", "8/3"), ("-.1\\bar{6}", "-1/6"), ("66.\\overline{6}\\%", "200/3"), ("0.\\overline{9}", 1),
    ("8/3 = 2.66...", "8/3"), ("x = \\frac83 \\approx 2.67\\ldots", "8/3"), ("18...", 18),
    # Look-alikes and what cannot be seen
    ("\u22125", -5), ("1\u00a0000", 1000), ("\u200f18\u200e", 18), ("\u202b18\u202c", 18), ("1\u200b8", 18),
    ("\x0018\x0c", 18),
    ("１８", 18), ("١٨", 18),
]  # fmt: skip

NOT_READ = [
    "", " ", "km", "x", "nan", "inf", "0x10", "1_000", "--7", "1.2.3", "3:30", "3-4", "3 - 4", "18 or 19",
    "5 and a half",
    "5 apples and 3 pears", "1,2", "1,00", "12,345,67", "1/0", "1e99999", "(1, 2)", "5!", "2^10", "2x", "2ab",
    "5 x", "5 apples x",
    "5m", "2\\pi", "2 pi",
    "2π", "\\sqrt{2}", "2\\sqrt{3}", "5\\rightarrow", "3. Compute the sum", "5\x006", "10²",
    "x = 3, y = 4", "x = 3 or x = 4", "x >= 5", "x <= 5", "x != 5", "\\frac123", "\\frac{1,2}{3}", "5 (mod 7)",
    "9" * 501, "at least 5", "5 or more",
    "12 feet 4 inches", "3 hours 20 minutes", "25 cents and 7 dollars", "7 dollars and 5 hours", "between 6 and 9",
    "6 to 9", "7 or 8", "2.66\\ldots", "2.66...", "2.66 …", "2.66\\dots\\text{ cm}", "8/3 = 2.76...", "x = 2.66...",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), READ)
def test_reads(text, value):
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize("text", NOT_READ)
def test_does_not_read(text):
    assert parse_number(text) is None


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{:d}", "{:,d}", "${:,d}$", "{:d} dollars", "{:d}.00"]))
def test_every_integer_is_read_in_every_form(value, form):
    assert parse_number(form.format(value)) == value


@given(st.fractions())
def test_fractions_are_exact(value):
    assert parse_number(str(value)) == value
    assert parse_number(f"\\frac{{{value.numerator}}}{{{value.denominator}}}") == value


@given(st.text(alphabet="0123456789.,-+/eE $%\\{}frac^xm\u2212\u00a0°", max_size=40))
def test_no_text_is_an_error(text):
    parse_number(text)


@pytest.mark.parametrize(
    ("answer", "value"),
    [("5", 5), ("x=5", 5), ("x_1 = 5", 5), ("f(2) = 5", 5), ("\\text{Area} = 5", 5), ("3+2=5", 5), ("x+y=5", None),
     ("2x=5", None), ("x^2+y^2=25", None), ("5x - 7y = 0", None), ("\\frac{x}{2} = 5", None), ("x", None),
     ("1" * 600, None)],
)  # fmt: skip
def test_references(answer, value):
    assert reference_number(answer) == value


@pytest.mark.parametrize(
    ("candidate", "answer", "same"),
    [("5", "5.0", True), ("5", "6", False), ("x", "5", None), ("5", "x", None), ("x = 5", "5", True),
     ("5", "x = 5", True), ("X=5", "x=5", True), ("y = 5", "x = 5", False), ("2x = 5", "x = 5", None),
     ("a+b = 5", "5", True), ("1/3 ≈ 0.333", "1/3", True), ("1/3 ≈ 0.333", "0.333", True), ("2/3 ≈ 0.67", "2/3", True),
     ("2/3 ≈ 0.66", "2/3", True), ("1/3 ≈ 0.34", "1/3", False), ("1/3 ≈ 0.333", "0.3333", False),
     ("5 ≈ 6", "5", False), ("1/3 = 0.333", "1/3", False), ("x = 1/3 ≈ 0.333", "y = 1/3", False),
     ("5.9 ≈ 16/3", "5.9", False), ("1000/3 ≈ 333", "1000/3", True), ("1/3 ≈ 0.333...", "1/3", True),
     ("8/3 = 2.66...", "2.66", False),
     # Amounts in several units, where the reference has a unit of that kind
     ("12 feet 4 inches", "148\\text{ inches}", True), ("12 ft 4 in", "12\\frac13\\text{ feet}", True),
     ("12 feet 4 inches", "12\\text{ ft }4\\text{ in}", True), ("148 inches", "12 feet, 4 inches", True),
     ("3 hours and 20 minutes", "200 minutes", True), ("3 hours 20 minutes", "3 hours", False),
     ("7 dollars and 25 cents", "725 cents", True), ("7 dollars and 25 cents", "$7.25", True),
     ("12 feet 4 inches", "12", None), ("12 feet 4 inches", "4", None), ("3 hours 20 minutes", "200", None),
     ("12 feet 4 inches", "148 hours", None)],
)  # fmt: skip
def test_same_number(candidate, answer, same):
    assert same_number(candidate, answer) is same


def test_a_close_decimal_is_another_number():
    assert parse_number("0.3333333333333333") != parse_number("1/3")
