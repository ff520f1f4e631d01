"""The layouts in which preference data come, told apart by the first row and then required of all rows.

| layout | prompt | chosen, rejected | e.g. |
| --- | --- | --- | --- |
| text | text (`prompt` or `question`) | text | argilla's, TRL's "standard" sets |
| system and text | the same, with a `system` text | text | Intel/orca_dpo_pairs, truthy-dpo |
| messages and text | messages | text | |
| messages and turns | messages | one assistant message each | TRL's "conversational" sets |
| conversations | the messages both sides begin with | messages | UltraFeedback binarized, orpo-dpo-mix |
| dialogues | the text both sides begin with | "\\n\\nHuman: ...\\n\\nAssistant: ..." | Anthropic/hh-rlhf |

A text `prompt` beside conversations repeats one of their turns and is not read; nor are other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evals.errors import EvalError
from evals.pairs.pair import Prompt
from evals.prompts import Message
from evals.row_sources import Row

ROLES = ("system", "user", "assistant")
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"


class Parts(NamedTuple):
    """What a row holds, as it stands there."""

    prompt: Prompt
    chosen: str
    rejected: str


Layout = Callable[[Row], Parts]
"""Takes a row apart. Raises EvalError, without the row's place, for one of another layout."""


def layout_of(row: Row) -> Layout:
    """The layout of a file whose first row this is."""
    prompt, chosen = row.get("prompt"), row.get("chosen")
    if isinstance(chosen, list):
        return _messages_and_turns if isinstance(prompt, list) else _conversations
    if isinstance(prompt, list):
        return _messages_and_text
    if prompt is None and isinstance(chosen, str) and chosen.startswith(HUMAN):
        return _dialogues
    return _system_and_text if "system" in row else _text


def take_apart(row: Row, layout: Layout) -> Parts:
    """Prompt and completions of a row. Raises EvalError, without the row's place, for a row that is no pair."""
    parts = layout(row)
    for name, side in (("chosen", parts.chosen), ("rejected", parts.rejected)):
        if not side.strip():
            raise EvalError(f"the completion in {name!r} is empty; remove the row")
    if parts.chosen == parts.rejected:
        raise EvalError("chosen and rejected are the same, so neither is preferred; remove the row")
    return parts


def _text(row: Row) -> Parts:
    if row.get("system"):
        raise EvalError("it has a 'system', which the first row lacks; give all rows one, empty where there is none")
    return Parts(_text_prompt(row), _text_field(row, "chosen"), _text_field(row, "rejected"))


def _system_and_text(row: Row) -> Parts:
    prompt: list[Message] = [{"role": "user", "content": _text_prompt(row)}]
    if row.get("system"):
        prompt.insert(0, {"role": "system", "content": _text_field(row, "system")})
    return Parts(prompt, _text_field(row, "chosen"), _text_field(row, "rejected"))


def _messages_and_text(row: Row) -> Parts:
    prompt = _ends_with_user(_messages(row, "prompt"), "'prompt'")
    return Parts(prompt, _text_field(row, "chosen"), _text_field(row, "rejected"))


def _messages_and_turns(row: Row) -> Parts:
    prompt = _ends_with_user(_messages(row, "prompt"), "'prompt'")
    return Parts(prompt, *(_one_turn(_messages(row, name), name) for name in ("chosen", "rejected")))


def _conversations(row: Row) -> Parts:
    chosen, rejected = _messages(row, "chosen"), _messages(row, "rejected")
    # Of equal conversations the last turn is still no prompt.
    shared = min(_shared(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    prompt = chosen[:shared]
    if not prompt:
        raise EvalError(
            "chosen and rejected are conversations that differ from their first turn on, so there is no prompt; begin "
            "both with it, or give `prompt` as messages"
        )
    _ends_with_user(prompt, "what both sides begin with")
    return Parts(prompt, _one_turn(chosen[shared:], "chosen"), _one_turn(rejected[shared:], "rejected"))


def _dialogues(row: Row) -> Parts:
    chosen, rejected = _text_field(row, "chosen"), _text_field(row, "rejected")
    shared = chosen[: _shared(chosen, rejected)]
    end = shared.rfind(ASSISTANT) + len(ASSISTANT)
    if not shared.startswith(HUMAN) or ASSISTANT not in shared:
        raise EvalError(
            f"no field 'prompt', and chosen and rejected do not begin with the same {HUMAN!r} ... {ASSISTANT!r} as in "
            "the first row"
        )
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if HUMAN in side[end:]:
            raise EvalError(f"{name!r} goes on with a turn of the human after the two sides part; cut it there")
    return Parts(shared[:end], chosen[end:], rejected[end:])


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _text_prompt(row: Row) -> str:
    name = "question" if row.get("prompt") is None and "question" in row else "prompt"
    prompt = _text_field(row, name)
    if not prompt.strip():
        raise EvalError(f"the field {name!r} is empty; remove the row")
    return prompt


def _ends_with_user(prompt: list[Message], where: str) -> list[Message]:
    if prompt[-1]["role"] != "user":
        raise EvalError(f"{where} ends with a turn of the {prompt[-1]['role']}; a prompt must end with one of the user")
    return prompt


def _one_turn(turns: list[Message], name: str) -> str:
    if [turn["role"] for turn in turns] != ["assistant"]:
        roles = ", ".join(turn["role"] for turn in turns) or "nothing"
        raise EvalError(f"{name!r} must be one turn of the assistant after the prompt; it is {roles}")
    return turns[0]["content"]


def _messages(row: Row, name: str) -> list[Message]:
    value = _field(row, name)
    if not isinstance(value, list) or not value:
        raise EvalError(f"the field {name!r} is {_kind(value)}; it must be a list of messages, as in the first row")
    return [_message(item, f"message {number} of {name!r}") for number, item in enumerate(value, start=1)]


def _message(item: object, where: str) -> Message:
    if not isinstance(item, dict) or not {"role", "content"} <= item.keys():
        has = ", ".join(map(repr, item)) if isinstance(item, dict) else _kind(item)
        raise EvalError(f"{where} has {has}; a message has 'role' and 'content'")
    role, content = item["role"], item["content"]
    if role not in ROLES:
        raise EvalError(f"{where} has the role {role!r}; roles are {', '.join(ROLES)}: rename it")
    if not isinstance(content, str):
        raise EvalError(f"the content of {where} is {_kind(content)}; it must be text")
    return {"role": role, "content": content}


def _text_field(row: Row, name: str) -> str:
    value = _field(row, name)
    if not isinstance(value, str):
        raise EvalError(f"the field {name!r} is {_kind(value)}; it must be text, as the layout of the first row has it")
    return value


def _field(row: Row, name: str) -> object:
    if name not in row:
        raise EvalError(
            f"no field {name!r}; the row has {', '.join(map(repr, row)) or 'none at all'}. A pair has `prompt`, "
            "`chosen` and `rejected`: rename or add what is missing"
        )
    return row[name]


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case []:
            return "an empty list"
        case list():
            return "a list"
        case dict():
            return "an object"
        case str():
            return "text"
        case _:
            return f"{value!r}"
