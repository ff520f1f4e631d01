"""A causal language model with its tokenizer, loaded from any `model.source`.

Loading checks that model, tokenizer and chat template agree on the tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from evals.prompts import Message
from harness.config.model_source import parse_source
from harness.errors import RefusedError
from harness.models.chat import TemplateCheck, between_answers, check_template, render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ChatTemplate = Literal["auto", "tokenizer", "plain"]


@dataclass(frozen=True)
class LanguageModel:
    """A model and its tokenizer. The model is in evaluation mode, since dropout would set sampler and trainer apart."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    wanted_chat_template: ChatTemplate = "auto"
    """The knob `model.chat_template`, which the property `chat_template` resolves."""
    unknown_tokens: frozenset[int] = frozenset()
    """Ids that the tokenizer can produce but the model has no embedding for."""
    commit: str | None = None
    """The commit of the hub repository that the model was loaded from; None for other sources."""

    @property
    def chat_template(self) -> Literal["tokenizer", "plain"]:
        """How messages are rendered: by the tokenizer's template, or `plain`, their contents joined by blank lines."""
        if self.wanted_chat_template == "auto":
            return "tokenizer" if self.tokenizer.chat_template else "plain"
        return self.wanted_chat_template

    @cached_property
    def template_check(self) -> TemplateCheck | None:
        """The result of checking the tokenizer's chat template; None if the template is not used."""
        return check_template(self.tokenizer) if self.chat_template == "tokenizer" else None

    @property
    def eos_token_ids(self) -> list[int]:
        """The ids of all tokens that end a completion, in ascending order.

        They are the end tokens of the tokenizer and of the generation config, and the token that the chat template in
        use writes after an answer.
        """
        configured = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ids = configured if isinstance(configured, list) else [configured]
        turn_end = self.template_check.turn_end if self.template_check else None
        return sorted({token for token in [self.tokenizer.eos_token_id, *ids, turn_end] if token is not None})

    @property
    def pad_token_id(self) -> int:
        """The id for padding. If the tokenizer defines none, any valid id will do, because padding is always masked."""
        pad = self.tokenizer.pad_token_id
        return self.eos_token_ids[0] if pad is None else int(pad)

    @property
    def context_tokens(self) -> int | None:
        """The maximum number of tokens of a prompt and its completion; None if the model's config has no limit."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def longest(self, prompts: Iterable[str | list[Message]]) -> int:
        """Return the number of tokens of the longest prompt."""
        return max(len(self.encode(prompt)) for prompt in prompts)

    def encode(self, prompt: str | list[Message]) -> list[int]:
        """Return the token ids of a prompt: a text, or messages that `chat_template` renders.

        A text gets the special tokens that the tokenizer adds to every text. The tokenizer's chat template writes its
        own special tokens.
        Raises RefusedError if the template rejects the messages, or if the model has no embedding for a token.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer(prompt)["input_ids"]
        elif self.chat_template == "tokenizer":
            ids = self.tokenizer(render_chat(self.tokenizer, prompt), add_special_tokens=False)["input_ids"]
        else:
            ids = self.tokenizer("\n\n".join(message["content"] for message in prompt) + "\n\n")["input_ids"]
        return self._known(ids, prompt)

    def _known(self, ids: Sequence[int], text: str | list[Message]) -> list[int]:
        """Return the ids as a list. Raises RefusedError if the model has no embedding for one of them."""
        unknown = self.unknown_tokens.intersection(ids)
        if unknown:
            raise RefusedError(
                "models.token_without_embedding", token=self.tokenizer.convert_ids_to_tokens(min(unknown)), text=text
            )
        return list(ids)

    def encode_completion(self, text: str) -> list[int]:
        """Return the token ids of a given completion as training data: its text, then one end-of-sequence token.

        That token is the tokenizer's own, or if the tokenizer has none, the first of `eos_token_ids`.
        """
        own = self.tokenizer.eos_token_id
        return [*self.encode_text(text), self.eos_token_ids[0] if own is None else int(own)]

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of a text that continues another text, without added special tokens.

        Raises RefusedError if the model has no embedding for a token.
        """
        return self._known(self.tokenizer(text, add_special_tokens=False)["input_ids"], text)

    def encode_reply(self, text: str, in_chat: bool, behind: int) -> list[int]:
        """Return the token ids of an environment's reply between two turns of the model.

        in_chat: render the reply as the next message, followed by the start of the model's turn. If False, the reply is
        inserted unchanged.
        behind: the last token of the model's turn. If the rendered reply begins with this token, it is not repeated.
        Raises RefusedError if the chat template rejects another message.
        """
        if not in_chat:
            return self.encode_text(text)
        if self.chat_template == "plain":
            return self.encode_text(f"\n\n{text}\n\n")
        ids = self.encode_text(between_answers(self.tokenizer, text))
        return ids[1:] if ids[:1] == [behind] else ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids without special tokens.

        Ids that the tokenizer does not know, from padded embeddings, have no text.
        """
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def remarks(self) -> list[str]:
        """Return sentences on what the model's files leave open and how bench decided, for users and records."""
        tokenizer, check = self.tokenizer, self.template_check
        if check is None:
            has = "has one, but plain is asked for" if tokenizer.chat_template else "has none"
            remarks = [f"chat template: plain (messages joined by blank lines); the tokenizer {has}"]
        else:
            remarks = ["chat template: the tokenizer's"]
            if check.split:
                remarks.append(f"its chat template spells {', '.join(check.split)} out in several tokens")
            # With `plain`, the end tokens are only those that the files define.
            named_ends = replace(self, wanted_chat_template="plain").eos_token_ids
            if check.turn_end is not None and check.turn_end not in named_ends:
                token = tokenizer.convert_ids_to_tokens(check.turn_end)
                remarks.append(
                    f"{token} ends a completion too: the chat template writes it after an answer, though neither "
                    "tokenizer nor generation config names it as an end"
                )
        if tokenizer.pad_token_id is None:
            token = tokenizer.convert_ids_to_tokens(self.pad_token_id)
            remarks.append(f"the tokenizer has no padding token; {token} takes its place, masked everywhere")
        for index in sorted(self.unknown_tokens):
            remarks.append(
                f"no prompt may hold {tokenizer.convert_ids_to_tokens(index)}: the model has no embedding for it"
            )
        return remarks

    def account(self) -> dict[str, object]:
        """Return the facts about the model, other than its source, that records keep."""
        return {
            "architecture": type(self.model).__name__,
            "parameters": self.model.num_parameters(),
            "vocabulary_tokens": vocabulary_size(self.model),
            "commit": self.commit,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "chat_template": self.chat_template,
            "eos_token_ids": self.eos_token_ids,
            "pad_token_id": self.pad_token_id,
            "remarks": self.remarks(),
        }

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_model(
    source: str,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    chat_template: ChatTemplate = "auto",
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Load `model.source` onto a device, with weights in this dtype.

    Raises RefusedError if the source is missing, unreachable or damaged, needs code that is not trusted, or if its
    model, tokenizer and chat template do not belong together.
    """
    from harness.models.loading import hub_commit, load_pretrained

    parsed = parse_source(source)
    if parsed.kind == "scratch":
        from harness.models.tiny import tiny_model, tiny_tokenizer

        model, tokenizer = tiny_model(seed=0).to(dtype), tiny_tokenizer()
    else:
        model, tokenizer = load_pretrained(parsed, dtype, trust_remote_code)
    # Computed before the vocabulary check, because only these tokens may lack an embedding.
    unknown = placeholders(model, tokenizer)
    language_model = LanguageModel(model, tokenizer, chat_template, unknown, hub_commit(parsed))
    try:
        require_matching_vocabulary(language_model)
    except RefusedError as error:
        raise RefusedError("models.in_model_source", source=source, error=error) from error
    language_model.model.eval().to(device)
    return language_model


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the blake2b digest of the weights' names and bytes, in the order of their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def weight_version(model: nn.Module) -> int:
    """Return a counter that grows with every in-place write to a weight or buffer of the model.

    The write may come from an optimiser, `load_state_dict` or any other code. torch does not count writes through
    `.data` and by fused optimisers. Versions of different models are not comparable.
    """
    return sum(tensor._version for tensor in chain(model.parameters(), model.buffers()))


def require_matching_vocabulary(language_model: LanguageModel) -> None:
    """Raise RefusedError if model, tokenizer and chat template do not fit, or if no token ends a completion.

    The model may have more embeddings than the tokenizer has tokens, because models pad them.
    """
    tokenizer, size = language_model.tokenizer, vocabulary_size(language_model.model)
    if language_model.chat_template == "tokenizer" and not tokenizer.chat_template:
        raise RefusedError("models.chat_template_missing")
    check = language_model.template_check
    if check is not None and not check.fits:
        raise RefusedError("models.chat_template_of_other_tokenizer", tokens=", ".join(check.split))
    unknown = {token: index for token, index in tokenizer.get_vocab().items() if index >= size}
    if not language_model.unknown_tokens.issuperset(unknown.values()):
        token, index = max(unknown.items(), key=lambda pair: pair[1])
        raise RefusedError(
            "models.tokens_without_embedding", n_unknown=len(unknown), token=token, token_id=index, n_embeddings=size
        )
    ends = language_model.eos_token_ids
    if not ends:
        raise RefusedError("models.end_token_missing")
    for name, token_id in [*(("end-of-sequence", end) for end in ends), ("padding", language_model.pad_token_id)]:
        if not 0 <= token_id < size:
            raise RefusedError(
                "models.special_token_outside_vocabulary", special=name, token_id=token_id, last_id=size - 1
            )
    # A tokenizer that appends an end-of-sequence token does so to any text, so one text is enough.
    if tokenizer("0")["input_ids"][-1] in ends:
        raise RefusedError("models.end_token_after_prompts")


def require_same_vocabulary(student: LanguageModel, teacher: LanguageModel, source: str) -> None:
    """Raise RefusedError unless teacher and student share a vocabulary. source: the teacher's, for the message."""
    own, others = student.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    if own == others:
        return
    token = min(token for token in own.keys() | others.keys() if own.get(token) != others.get(token))
    ids = [f"id {index}" if index is not None else "none" for index in (others.get(token), own.get(token))]
    raise RefusedError(
        "models.teacher_vocabulary_differs",
        source=source,
        n_teacher=len(others),
        n_student=len(own),
        token=token,
        teacher_id=ids[0],
        student_id=ids[1],
    )


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return the number of token ids that the model accepts."""
    return int(model.get_input_embeddings().weight.shape[0])


def placeholders(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the special tokens that have no embedding.

    They stand for other media, which a text-only model does not support (Gemma 3's <image_soft_token>).
    """
    size = vocabulary_size(model)
    return frozenset(
        index for index, token in tokenizer.added_tokens_decoder.items() if index >= size and token.special
    )


_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The character that decoders write in place of an incomplete character."""


class TokenCharacters:
    """Counts the characters that each token adds to a completion's text, using only the tokenizer's `decode`.

    Most tokens add the same text at every position after the first, so this text is cached. If the cached pieces of a
    completion do not add up to its text, the completion is decoded token by token.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._pieces: dict[int, str] = {}

    def of(self, tokens: Sequence[int], text: str) -> list[int]:
        """Return how many characters of `text`, which is decode(tokens), each token completes.

        The counts add up to the length of `text`. Special tokens, and tokens that only begin a character, count 0.
        """
        if not tokens:
            return []
        pieces = [self._decode(tokens[:1]), *(self._piece(token) for token in tokens[1:])]
        if "".join(pieces) == text:
            return [len(piece) for piece in pieces]
        return self._one_by_one(tokens, text)

    def _piece(self, token: int) -> str:
        """Return the text of a token that follows another. Some tokenizers drop the space before the first token."""
        if token not in self._pieces:
            self._pieces[token] = self._decode([token, token])[len(self._decode([token])) :]
        return self._pieces[token]

    def _one_by_one(self, tokens: Sequence[int], text: str) -> list[int]:
        """Count characters token by token, like a decoder that streams text.

        Each step decodes only the tokens since the last but one token that completed a character.
        """
        counts: list[int] = []
        start = complete = written = 0
        for end in range(1, len(tokens) + 1):
            before = self._decode(tokens[start:complete])
            added = self._decode(tokens[start:end])[len(before) :]
            if not added or added.endswith(_UNFINISHED) or not text.startswith(added, written):
                counts.append(0)
                continue
            counts.append(len(added))
            written += len(added)
            start, complete = complete, end
        # Text that no token completes, such as half a character at the token limit, is credited to the last token.
        counts[-1] += len(text) - written
        return counts


class PromptTooLongError(RefusedError):
    """A prompt is empty, or leaves no room for its completion in the model's context."""


def require_answerable(model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_completion_tokens: int) -> None:
    """Raise PromptTooLongError if a prompt has no tokens, or with its completion exceeds the model's context.

    Raises ValueError if there are no prompts or max_completion_tokens is below 1.
    """
    if not prompts:
        raise ValueError("generate was given no prompts; it needs at least one")
    if max_completion_tokens < 1:
        raise ValueError(f"max_completion_tokens is {max_completion_tokens}, but must be at least 1")
    if not all(prompts):
        raise PromptTooLongError("models.prompt_without_tokens")
    require_room(model, max(len(prompt) for prompt in prompts), max_completion_tokens)


def require_room(model: PreTrainedModel, longest_prompt_tokens: int, max_completion_tokens: int) -> None:
    """Raise PromptTooLongError if a prompt and a completion of these lengths exceed the model's context."""
    # If the config lacks this field, the context counts as unlimited.
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and longest_prompt_tokens + max_completion_tokens > context:
        room = context - longest_prompt_tokens
        remedy = f"Lower max_completion_tokens to {room} or less" if room > 0 else "Leave that prompt out"
        raise PromptTooLongError(
            "models.context_exceeded",
            prompt_tokens=longest_prompt_tokens,
            max_completion_tokens=max_completion_tokens,
            context=context,
            remedy=remedy,
        )
