"""Where the answer starts in a completion, and how to write the gold answer there.

Each extraction that looks for a mark has a form, and finds answers written in that form. The form splits a completion
into reasoning and answer, so that a model can score the gold answer after that reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class AnswerForm:
    """`<opening><before><answer><closing>`. If there is no closing mark, the answer ends with the completion."""

    opening: str
    before: str = ""
    closing: str = ""

    def opening_in(self, text: str) -> tuple[int, int] | None:
        """Return the start and end of the last opening mark in a completion, in characters; None if there is no mark.

        As in extraction, a thought (`<think>`) is not searched for an answer.
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
        """Return the text that follows the opening mark in a completion that gives this answer."""
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
"""Maps extractions to their forms. Extractions that are not listed find answers without an opening mark."""
