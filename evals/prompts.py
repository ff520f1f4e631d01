"""Named prompt templates. A template's version changes with its text, so that scores under two texts never mix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from evals.errors import UnknownNameError


class Message(TypedDict):
    """One turn of a chat, as chat templates of tokenizers take it."""

    role: str
    content: str


@dataclass(frozen=True)
class Template:
    """A prompt with one hole, `{problem}`.

    system: system message of a chat prompt, or None for none at all.
    chat: whether the prompt is a list of messages (for the tokenizer's chat template) or plain text.
    """

    name: str
    version: int
    text: str
    system: str | None
    chat: bool

    def render(self, problem: str) -> str | list[Message]:
        """The prompt of one problem. The problem's own braces and backslashes are left alone."""
        prompt = self.text.replace("{problem}", problem)
        if not self.chat:
            return prompt
        system: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]


TEMPLATES = {
    template.name: template
    for template in (
        Template("plain", version=1, text="{problem}", system=None, chat=False),
        # The instruction that DeepSeek-R1's README recommends, in the user's turn and without a system message.
        Template(
            "boxed",
            version=1,
            text="{problem}\nPlease reason step by step, and put your final answer within \\boxed{}.",
            system=None,
            chat=True,
        ),
        # The prompt that Qwen2.5-Math was made for: the instruction as the system message, the problem alone as the
        # user's turn (`apply_qwen_math_template` in sail-sg/understand-r1-zero). The template alone moves that base
        # model's MATH-500 by 29 points (Liu et al., arXiv:2503.20783).
        Template(
            "qwen_math",
            version=1,
            text="{problem}",
            system="Please reason step by step, and put your final answer within \\boxed{}.",
            chat=True,
        ),
        Template(
            "answer_tag",
            version=1,
            text="{problem}\nPlease reason step by step, and put your final answer, and nothing else, between <answer> "
            "and </answer>.",
            system=None,
            chat=True,
        ),
        Template("question_answer", version=1, text="Question: {problem}\nAnswer:", system=None, chat=False),
    )
}


def get_template(name: str) -> Template:
    """The template of that name. Raises UnknownNameError."""
    if name not in TEMPLATES:
        raise UnknownNameError("template", name, TEMPLATES)
    return TEMPLATES[name]
