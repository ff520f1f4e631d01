"""Chat templates of tokenizers: rendering, whether a template fits its tokenizer, and which token ends an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evals.prompts import Message
from harness.errors import RefusedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Markers that chat templates intend as a single token. Some models write the bars full-width.
_MARKER = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|<(?:start|end)_of_\w+>")
_TAG = re.compile(r"<[^<>\s]+>")
_QUESTION, _ANSWER = "2+2=", "4 it is"


@dataclass(frozen=True)
class TemplateCheck:
    """The result of checking a chat template."""

    turn_end: int | None
    """Id of the token that the template writes after an answer; None if it writes no token there."""
    split: tuple[str, ...]
    """The template's markers that the tokenizer splits into several tokens."""

    @property
    def fits(self) -> bool:
        """True if the template can be used.

        Some models have no token for a role and spell it out (Zephyr). That is harmless if a token ends their answers.
        """
        return not self.split or self.turn_end is not None


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], answer_follows: bool = True) -> str:
    """Render the messages with the tokenizer's chat template. Raises RefusedError if the template rejects them."""
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=answer_follows, tokenize=False)
    except (TemplateError, ValueError) as error:
        roles = ", ".join(message["role"] for message in messages)
        raise RefusedError("models.chat_template_rejects_roles", roles=roles, error=error) from error
    return str(text)


def between_answers(tokenizer: PreTrainedTokenizerBase, reply: str) -> str:
    """Return the text that the template writes between two answers of the model, when the user replies in between.

    It has the end of the first answer, the reply, and the start of the second. Raises RefusedError if the template
    rejects these messages.
    """
    # A made-up exchange with a known answer: what follows that answer in the text is the wanted part.
    messages: list[Message] = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": reply},
    ]
    return render_chat(tokenizer, messages).partition(_ANSWER)[2]


def check_template(tokenizer: PreTrainedTokenizerBase) -> TemplateCheck:
    """Check how the tokenizer's template writes a question and its answer."""
    asked: Message = {"role": "user", "content": _QUESTION}
    prompt = render_chat(tokenizer, [asked])
    answered = render_chat(tokenizer, [asked, {"role": "assistant", "content": _ANSWER}], answer_follows=False)
    markers = dict.fromkeys(_MARKER.findall(prompt + answered))
    # Only a tag directly after the answer ends it. Templates may put white space in between.
    tag = _TAG.match(answered.rpartition(_ANSWER)[2].lstrip())
    return TemplateCheck(
        turn_end=None if tag is None else _token(tokenizer, tag[0]),
        split=tuple(marker for marker in markers if _token(tokenizer, marker) is None),
    )


def _token(tokenizer: PreTrainedTokenizerBase, text: str) -> int | None:
    """Return the id of the text's only token, or None if the text is not exactly one known token."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    # The unknown token also stands for an unknown text, so it counts only if the text is that token.
    known = len(ids) == 1 and (ids[0] != tokenizer.unk_token_id or text == tokenizer.unk_token)
    return int(ids[0]) if known else None
