"""What a preference pair is."""

from __future__ import annotations

from dataclasses import dataclass

from evals.prompts import Message

Prompt = str | list[Message]


@dataclass(frozen=True)
class PreferencePair:
    """Two different completions of one prompt, one preferred to the other.

    prompt: messages that end with a turn of the user, for the tokenizer's chat template; or text that the completions
        continue as it is. where: its file and line, or its data set and row, for error messages.
    """

    id: str
    prompt: Prompt
    chosen: str
    rejected: str
    where: str
