"""The section on reflection words as a table, or as one line where none occurs."""

from __future__ import annotations

from collections import Counter

from reports.formats import MISSING, number, percent, ratio
from reports.reflection.summary import ANY_WORD, MOST_FILES, ArmWords, Reflection
from reports.table import Table

TITLE = "Reflection words"
COLUMNS = [
    *("arm", "word", "before training (per 1,000 tokens)", "at the end", "occurrences"),
    *("right with it", "right without", "log-prob", "entropy", "advantage"),
    *("ratio, first to last", "clipped or masked"),
]
NOTE = (
    f"In completions drawn in training (of more than {MOST_FILES} files of them in all, in so many, spread over "
    "training), all seeds together, as whole words in upper or lower case. Before training: in "
    "the first step's completions; at the end: in the last fifth of the steps. From the log-prob on: means over the "
    "tokens that wrote the word, and behind the stroke over all other tokens. Ratio: at the first and the "
    "last optimiser step on a rollout batch. These describe and are not tested; an answer with such a word need not "
    "be right or wrong because of it."
)


def reflection_table(reflection: Reflection) -> Table:
    """A row for each arm and word that occurs; before them, where they are several, one for all together."""
    names = ", ".join(reflection.words)
    if not reflection.n_completions:
        return Table(TITLE, [], [], f"No completions drawn in training are recorded, in which to look for {names}.")
    if not reflection.arms:
        return Table(TITLE, [], [], f"None of {names} occurs in the {reflection.n_completions:,} completions.")
    unrecorded = dict.fromkeys(row.arm for row in reflection.arms if row.n_occurrences and not row.n_tokens_recorded)
    missing = (
        f" Of {', '.join(unrecorded)} no tokens are recorded (they learn from pairs, or train.token_records_max_tokens "
        "left their steps out)."
        if unrecorded
        else ""
    )
    found = [row for row in reflection.arms if row.n_occurrences]
    single = {arm for arm, n in Counter(row.arm for row in found).items() if n == 2}
    rows = [_row(row) for row in found if not (row.word == ANY_WORD and row.arm in single)]
    return Table(TITLE, COLUMNS, rows, f"Looked for: {names}. {NOTE}{_absence(reflection)}{missing}")


def _absence(reflection: Reflection) -> str:
    """The words that an arm never wrote, as the table has no row for them."""
    written = {(row.arm, row.word) for row in reflection.arms if row.n_occurrences}
    arms = tuple(dict.fromkeys(row.arm for row in reflection.arms))
    never: dict[tuple[str, ...], list[str]] = {}
    for word in reflection.words:
        if without := tuple(arm for arm in arms if (arm, word) not in written):
            never.setdefault(without, []).append(word)
    parts = [f"by {'any arm' if by == arms else ', '.join(by)}: {', '.join(words)}" for by, words in never.items()]
    return f" Never written in these completions {'; '.join(parts)}." if parts else ""


def _row(row: ArmWords) -> list[str]:
    return [
        row.arm,
        row.word,
        number(row.first_per_1000_tokens),
        number(row.last_per_1000_tokens),
        f"{row.n_occurrences:,} in {row.n_completions_with:,}",
        percent(row.right_frac_with),
        percent(row.right_frac_without),
        _both(number(row.logp_nats), number(row.other_logp_nats)),
        _both(number(row.entropy_nats), number(row.other_entropy_nats)),
        _both(number(row.advantage), number(row.other_advantage)),
        _both(_first_to_last(row.ratio_by_update), _first_to_last(row.other_ratio_by_update)),
        _both(percent(row.bounded_frac), percent(row.other_bounded_frac)),
    ]


def _both(word: str, other: str) -> str:
    return f"{word} / {other}"


def _first_to_last(ratios: list[float | None]) -> str:
    ends = ratios if len(ratios) < 2 else [ratios[0], ratios[-1]]
    return " to ".join(map(ratio, ends)) or MISSING
