from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.samples.formulas import ATTRIBUTES, ELEMENTS, MOST_CHARACTERS, Tree, find_formulas, translate

PIECES = [
    *("\\frac", "\\sqrt", "\\text", "\\href", "\\unicode{202e}", "\\left(", "\\begin{matrix}", "\\end{matrix}"),
    *("\\color{red}", "{", "}", "[", "]", "^", "_", "&", "\\\\", "x", "12", "<b>", "'", "$", "\\(", "\\)"),
]


def nodes(tree: Tree) -> list[Tree]:
    return [tree, *(node for child in tree[3] for node in nodes(child))]


def text_of(tree: Tree | None) -> str:
    assert tree is not None
    return "".join(node[2] for node in nodes(tree))


def test_formulas_are_found_between_their_delimiters():
    text = r"First \(x<y\), then $\frac{1}{2}$, \[\sum_i x_i\] and $$a^2$$."
    found = list(find_formulas(text))
    assert [text[start:end] for start, end, _ in found] == [
        *(r"\(x<y\)", r"$\frac{1}{2}$", r"\[\sum_i x_i\]", "$$a^2$$")
    ]
    assert [tree[1]["display"] for *_, tree in found] == ["inline", "inline", "block", "block"]
    assert [text_of(tree) for *_, tree in found] == ["x<y", "12", "∑ixi", "a2"]
    assert "mfrac" in {node[0] for node in nodes(found[1][2])}


@pytest.mark.parametrize(
    "text",
    [
        "it costs $5 and $6",
        r"\$5 to \$6$",
        r"$\nosuchcommand{x}$",
        r"$\frac{1$ {",
        r"$\newcommand{\x}{\x\x}\x$",
        f"${'x' * (MOST_CHARACTERS + 1)}$",
        "$" + "{" * 300 + "$",
    ],
)
def test_what_is_no_formula_or_cannot_be_translated_stays_text(text):
    assert [tree for *_, tree in find_formulas(text) if "\\" in text_of(tree) or len(text_of(tree)) > 100] == []
    assert not list(find_formulas(text)) or text == r"$\frac{1$ {"


def test_no_link_colour_or_markup_comes_out_of_a_formula():
    for latex in (r"\href{javascript:alert(1)}{x}", r"\color{red\" onclick=alert(1)}{x}", r"\text{<script>}"):
        tree = translate(latex)
        assert tree is not None
        assert {name for node in nodes(tree) for name in node[1]} <= {"display"}
    assert "<script>" in text_of(tree)  # as text: the page writes text as text


def test_characters_that_turn_text_round_are_replaced():
    tree = translate(r"\unicode{202e}")
    assert text_of(tree) == "\N{REPLACEMENT CHARACTER}"


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_whatever_a_model_writes_becomes_known_elements_or_nothing(text):
    for start, end, tree in find_formulas(f"a ${text}$ b \\({text}\\)"):
        assert 0 <= start < end
        for tag, attributes, _, _ in nodes(tree):
            assert tag in ELEMENTS
            assert set(attributes) <= ATTRIBUTES


def test_openings_without_an_end_take_no_time():
    for opening in ("$x ", "\\(x ", "\\[x ", "$$x "):
        assert len(list(find_formulas(opening * 3000))) <= 1500
