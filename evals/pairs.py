"""Pairs of a chosen and a rejected completion of one prompt, from a JSONL file or a data set on the Hugging Face hub.

Preference data must have one of these layouts. The first row determines it, and all other rows must have the same.

| layout | prompt | chosen, rejected | e.g. |
| --- | --- | --- | --- |
| text | text (`prompt` or `question`) | text | argilla's, TRL's "standard" sets |
| system and text | the same, with a `system` text | text | Intel/orca_dpo_pairs, truthy-dpo |
| messages and text | messages | text | |
| messages and turns | messages | one assistant message each | TRL's "conversational" sets |
| conversations | the messages both sides begin with | messages | UltraFeedback binarized, orpo-dpo-mix |
| dialogues | the text both sides begin with | "\\n\\nHuman: ...\\n\\nAssistant: ..." | Anthropic/hh-rlhf |

Next to conversations, a text `prompt` only repeats one of their turns, so it is not read. Nor are other columns.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from evals.errors import DataMissingError, EvalError
from evals.hub import Row, hub_rows
from evals.prompts import Message
from evals.tasks.rows import DATA_FOLDER_VARIABLE, file_rows
from harness import plugins

SHOWN_FAULTS = 5
HUB = "hub:"
_HUB_ADDRESS = re.compile(r"hub:(?P<id>[^:@]+)(:(?P<config>[^:@]+))?@(?P<revision>[^:@]+)")
ROLES = ("system", "user", "assistant")
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"

Prompt = str | list[Message]


@dataclass(frozen=True)
class PreferencePair:
    """Two different completions of one prompt, one preferred to the other."""

    id: str
    prompt: Prompt
    """Messages that end with a user turn, for the tokenizer's chat template; or text that the completions continue."""
    chosen: str
    rejected: str
    where: str
    """The file and line, or the data set and row, for error messages."""


class PairSource(Protocol):
    """A fixed set of pairs."""

    @property
    def fingerprint(self) -> str:
        """An identifier of the content, computed without the network. For a file, raises like `load`."""

    def load(self) -> Sequence[PreferencePair]:
        """Return the pairs in the source's order.

        Raises DataMissingError if they are not available, and EvalError, naming the first faulty rows, if rows are
        invalid.
        """


def parse_pair_source(data: str, split: str) -> PairSource:
    """Return the source that `data` names.

    data: the path of a JSONL file, or `hub:<id>[:<config>]@<revision>` with a commit or a tag. A path may be absolute,
    or relative to the current folder, the sweep file's folder or $BENCH_DATA; the first existing file is used.
    split: the split of a data set on the hub; must be `train` for a file.
    Raises EvalError for a hub address without a revision, or for a file with another split; DataMissingError for a
    missing file.
    """
    if data.startswith(HUB):
        address = _HUB_ADDRESS.fullmatch(data)
        if address is None or address["revision"] == "main":
            raise EvalError("evals.hub_pairs_not_pinned", source=data, prefix=HUB)
        return HubPairs(address["id"], address["config"], address["revision"], split)
    if split != "train":
        raise EvalError("evals.split_of_pairs_file", source=data, split=split)
    folder = os.environ.get(DATA_FOLDER_VARIABLE)
    for path in (plugins.user_file(data), *([Path(folder, data)] if folder else [])):
        if path.is_file():
            return LocalPairs(path)
    if Path(data).is_dir():
        raise DataMissingError("evals.pairs_in_folder", source=data)
    looked = f"nor is it in $BENCH_DATA ({folder})" if folder else "$BENCH_DATA is not set"
    raise DataMissingError("evals.pairs_file_missing", source=data, looked=looked, prefix=HUB)


@dataclass(frozen=True)
class LocalPairs:
    """Pairs in a JSONL file."""

    path: Path

    @property
    def fingerprint(self) -> str:
        status = self.path.stat()
        return _file_fingerprint(self.path, status.st_size, status.st_mtime_ns)

    def load(self) -> Sequence[PreferencePair]:
        return _read_pairs(file_rows(self.path), str(self.path), self.path.stem)


@dataclass(frozen=True)
class HubPairs:
    """Pairs in a split of a data set on the hub; `revision` is a commit or a tag."""

    id: str
    config: str | None
    revision: str
    split: str

    @property
    def fingerprint(self) -> str:
        return f"{HUB}{self.id}@{self.revision}/{self.config or 'default'}/{self.split}"

    def load(self) -> Sequence[PreferencePair]:
        name = self.fingerprint
        try:
            return _read_pairs(hub_rows(name, self.id, self.config, self.split, self.revision), name, self.id)
        except DataMissingError as error:
            raise DataMissingError("evals.hub_pairs_not_loaded", source=name, error=error) from error


def pairs_digest(pairs: Iterable[PreferencePair]) -> str:
    """Return `sha256:<hex>` of the (prompt, chosen, rejected) triples, in order.

    The digest ignores ids and the layout of the file.
    """
    digest = hashlib.sha256()
    for pair in pairs:
        triple = json.dumps([pair.prompt, pair.chosen, pair.rejected], sort_keys=True, separators=(",", ":"))
        digest.update(triple.encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


@lru_cache(maxsize=8)
def _file_fingerprint(path: Path, size_bytes: int, modified_ns: int) -> str:
    """Compute the fingerprint of a file once, although every cell of a plan needs it.

    Size and modification time are in the cache key, so that a changed file is read again.
    """
    return f"pairs:{pairs_digest(LocalPairs(path).load())}"


def _read_pairs(rows: Iterable[tuple[str, Row]], origin: str, name: str) -> tuple[PreferencePair, ...]:
    """Read the pairs of all rows. Pairs without an `id` are numbered: `<name>-00000`.

    Raises EvalError if rows are faulty, naming the first ones, or if there is no pair.
    """
    pairs: list[PreferencePair] = []
    faults: list[EvalError] = []
    layout: Layout | None = None
    for number, (where, row) in enumerate(rows):
        layout = layout or layout_of(row)
        try:
            parts = take_apart(row, layout)
        except EvalError as error:
            faults.append(EvalError("evals.in_row", where=where, error=error))
            faults[-1].causes = (error,)
            continue
        id = f"{name}-{number:05d}" if row.get("id") is None else str(row["id"])
        pairs.append(PreferencePair(id, *parts, where))
    if faults:
        more = len(faults) - SHOWN_FAULTS
        rest = [f"{more} more rows of {origin} are faulty"] if more > 0 else []
        refusal = EvalError("evals.faulty_pairs", faults="\n".join([*map(str, faults[:SHOWN_FAULTS]), *rest]))
        refusal.causes = tuple(faults)
        raise refusal
    if not pairs:
        raise EvalError("evals.no_pairs_in_source", origin=origin)
    return tuple(pairs)


class Parts(NamedTuple):
    """The parts of a row, unmodified."""

    prompt: Prompt
    chosen: str
    rejected: str


Layout = Callable[[Row], Parts]
"""Splits a row into its parts. Raises EvalError for a row of another layout; the message does not locate the row."""


def layout_of(row: Row) -> Layout:
    """Return the layout of a file, given its first row."""
    prompt, chosen = row.get("prompt"), row.get("chosen")
    if isinstance(chosen, list):
        return _messages_and_turns if isinstance(prompt, list) else _conversations
    if isinstance(prompt, list):
        return _messages_and_text
    # Dialogues have no separate prompt. A text with a prompt may also begin like a dialogue.
    if prompt is None and isinstance(chosen, str) and chosen.startswith(HUMAN):
        return _dialogues
    return _system_and_text if "system" in row else _text


def take_apart(row: Row, layout: Layout) -> Parts:
    """Return the prompt and completions of a row.

    Raises EvalError for a row that is not a pair; the message does not locate the row.
    """
    parts = layout(row)
    for name, side in (("chosen", parts.chosen), ("rejected", parts.rejected)):
        if not side.strip():
            raise EvalError("evals.empty_completion", field=name)
    if parts.chosen == parts.rejected:
        raise EvalError("evals.completions_equal")
    return parts


def _text(row: Row) -> Parts:
    if row.get("system"):
        raise EvalError("evals.unexpected_system")
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
    # If the conversations are equal, their last turn is still not part of the prompt.
    shared = min(_shared(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    prompt = chosen[:shared]
    if not prompt:
        raise EvalError("evals.conversations_without_prompt")
    _ends_with_user(prompt, "what both sides begin with")
    return Parts(prompt, _one_turn(chosen[shared:], "chosen"), _one_turn(rejected[shared:], "rejected"))


def _dialogues(row: Row) -> Parts:
    chosen, rejected = _text_field(row, "chosen"), _text_field(row, "rejected")
    shared = chosen[: _shared(chosen, rejected)]
    # The shared text may include the first words of both answers, so the prompt ends at the last marker in it.
    end = shared.rfind(ASSISTANT) + len(ASSISTANT)
    if not shared.startswith(HUMAN) or ASSISTANT not in shared:
        raise EvalError("evals.dialogues_without_prompt", human=HUMAN, assistant=ASSISTANT)
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if HUMAN in side[end:]:
            raise EvalError("evals.human_turn_after_split", field=name)
    return Parts(shared[:end], chosen[end:], rejected[end:])


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the number of items that both sequences begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _text_prompt(row: Row) -> str:
    name = "question" if row.get("prompt") is None and "question" in row else "prompt"
    prompt = _text_field(row, name)
    if not prompt.strip():
        raise EvalError("evals.empty_field", field=name)
    return prompt


def _ends_with_user(prompt: list[Message], where: str) -> list[Message]:
    if prompt[-1]["role"] != "user":
        raise EvalError("evals.prompt_not_of_user", where=where, role=prompt[-1]["role"])
    return prompt


def _one_turn(turns: list[Message], name: str) -> str:
    if [turn["role"] for turn in turns] != ["assistant"]:
        roles = ", ".join(turn["role"] for turn in turns) or "nothing"
        raise EvalError("evals.not_one_assistant_turn", field=name, roles=roles)
    return turns[0]["content"]


def _messages(row: Row, name: str) -> list[Message]:
    value = _field(row, name)
    if not isinstance(value, list) or not value:
        raise EvalError("evals.field_not_messages", field=name, value=_kind(value))
    return [_message(item, f"message {number} of {name!r}") for number, item in enumerate(value, start=1)]


def _message(item: object, where: str) -> Message:
    if not isinstance(item, dict) or not {"role", "content"} <= item.keys():
        has = ", ".join(map(repr, item)) if isinstance(item, dict) else _kind(item)
        raise EvalError("evals.malformed_message", where=where, given=has)
    role, content = item["role"], item["content"]
    if role not in ROLES:
        raise EvalError("evals.unknown_message_role", where=where, role=role, known=", ".join(ROLES))
    if not isinstance(content, str):
        raise EvalError("evals.content_not_text", where=where, value=_kind(content))
    return {"role": role, "content": content}


def _text_field(row: Row, name: str) -> str:
    value = _field(row, name)
    if not isinstance(value, str):
        raise EvalError("evals.field_not_text", field=name, value=_kind(value))
    return value


def _field(row: Row, name: str) -> object:
    if name not in row:
        raise EvalError("evals.pair_field_missing", field=name, row_fields=", ".join(map(repr, row)) or "none at all")
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
