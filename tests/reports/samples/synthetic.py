"""Texts that no page should fall for, and the problems that they answer."""

from __future__ import annotations

from dataclasses import dataclass

ATTACK = (
    "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script> \u2028 \u202e "
    "]]>--> &amp; __proto__ ${x} `y`"
)
TEXTS = [
    ATTACK,
    r"so $\frac{1}{2}$ costs $5 and $6 $\href{javascript:alert(1)}{x}$ $\foo$ \[\text{<script>}\]",
    "word " * 3000 + "the end of the long one",
    "\N{MATHEMATICAL SCRIPT CAPITAL X} emoji \N{SLIGHTLY SMILING FACE} $x^2$ tail",
]


@dataclass(frozen=True)
class AskedProblem:
    id: str
    problem: str
    answer: str
