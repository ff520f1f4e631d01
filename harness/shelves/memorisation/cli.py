"""The option and the output of `bench eval --memorisation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.cli.console import print_table, print_text
from harness.cli.verb import StatementProbe

if TYPE_CHECKING:
    from harness.evaluate.suite import Probe


def _make(max_completion_tokens: int | None) -> Probe:
    from harness.shelves.memorisation.probe import PROBE_TOKENS, MemorisationProbe

    return MemorisationProbe(max_completion_tokens or PROBE_TOKENS)


def _show(documents: Sequence[dict[str, Any]]) -> None:
    """Print the probe's summaries of memorised statements."""
    from harness.cli.eval_tables import percent

    print_table(
        f"{documents[0]['given_frac']:.0%} of each statement given, the rest asked for",
        ["task", "problems", "too short", "completed word for word (%)", "ROUGE-L", "answer came out (%)"],
        [
            [
                *(one["task"], str(one["problems"]), str(one["skipped"])),
                *(percent(one["exact_frac"]), f"{one['rouge_l']:.3f}", percent(one["correct_frac"])),
            ]
            for one in documents
        ],
    )
    print_text("Compare with a model older than the problems: a statement can be guessed in part.")


MEMORISATION = StatementProbe(_make, _show)
