"""Where the answer of a completion begins, and how to write the gold answer there.

There is a form for each extraction that looks for a mark: an answer written in the form is what the extraction finds.
The form splits a completion into reasoning and answer, so that a model can score the gold answer after that reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class AnswerForm:
    """`<opening><before><answer><closing>`. Without a closing mark, the answer ends with the completion."""

    opening: str
    before: str = ""
    closing: str = ""

    def opening_in(self, text: str) -> tuple[int, int] | None:
        """Where the last opening mark of a completion starts and ends, in characters; None if there is none.

        As in extraction, a thought (`<think>`) holds no answer.
        """
        _, thought_ends, after = text.rpartition("</think>")
        if not thought_ends and "<think>" in text:
            return None
        start = after.rfind(self.opening)
        if start < 0:
            return None
        start += len(text) - len(after)
        return start, start + len(self.opening)

    def behind_opening(self, answer: str) -> str:
        """What follows the opening mark where a completion gives this answer."""
        return self.before + answer + self.closing


_BOXED = AnswerForm("\\boxed{", closing="}")

ANSWER_FORMS: Mapping[str, AnswerForm] = MappingProxyType(
    {
        "chain": _BOXED,
        "boxed": _BOXED,
        "choice": _BOXED,
        "answer_tag": AnswerForm("<answer>", closing="</answer>"),
        "gsm8k": AnswerForm("####", before=" "),
        "hash": AnswerForm("#"),
    }
)
"""Extraction -> its form. Extractions that are not listed find answers that no mark opens."""
