"""Whether a model, its tokenizer and its chat template speak of the same tokens. Asked once, when a model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import RefusedError
from harness.models.language_model import LanguageModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def require_matching_vocabulary(language_model: LanguageModel) -> None:
    """Raise RefusedError if tokens that are used are unknown to the model or to the tokenizer, or if nothing would ever
    end a completion. More embeddings than tokens are fine: models pad them."""
    tokenizer, size = language_model.tokenizer, vocabulary_size(language_model.model)
    if language_model.chat_template == "tokenizer" and not tokenizer.chat_template:
        raise RefusedError(
            "its tokenizer has no chat template, which model.chat_template=tokenizer asks for. Use --set "
            "model.chat_template=plain, or add the template to its folder as chat_template.jinja."
        )
    check = language_model.template_check
    if check is not None and not check.fits:
        raise RefusedError(
            f"its chat template writes {', '.join(check.split)}, which its tokenizer does not know as one token: the "
            "template belongs to another tokenizer. Put the tokenizer's own template into the folder, or use --set "
            "model.chat_template=plain."
        )
    unknown = {token: index for token, index in tokenizer.get_vocab().items() if index >= size}
    if not language_model.unknown_tokens.issuperset(unknown.values()):
        token, index = max(unknown.items(), key=lambda pair: pair[1])
        raise RefusedError(
            f"its tokenizer knows {len(unknown)} tokens that the model has no embedding for, up to {token!r} with id "
            f"{index}; the model has {size}. Give the model the tokenizer that it was trained with."
        )
    ends = language_model.eos_token_ids
    if not ends:
        raise RefusedError(
            "neither tokenizer nor generation config names an end-of-sequence token, so no completion could ever end. "
            "Set eos_token in its tokenizer_config.json."
        )
    for name, token_id in [*(("end-of-sequence", end) for end in ends), ("padding", language_model.pad_token_id)]:
        if not 0 <= token_id < size:
            raise RefusedError(
                f"its {name} token has id {token_id}, but the model's vocabulary ends at {size - 1}. Correct "
                "tokenizer_config.json and generation_config.json."
            )
    if tokenizer("0")["input_ids"][-1] in ends:
        raise RefusedError(
            "its tokenizer puts an end-of-sequence token after every text, so that a prompt would be over before its "
            "completion begins. Set add_eos_token to false in its tokenizer_config.json."
        )


def vocabulary_size(model: PreTrainedModel) -> int:
    """The number of tokens that the model can be given."""
    return int(model.get_input_embeddings().weight.shape[0])


def placeholders(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Special tokens without an embedding: they stand for other media, which a text-only model leaves out (Gemma 3's
    <image_soft_token>)."""
    size = vocabulary_size(model)
    return frozenset(
        index for index, token in tokenizer.added_tokens_decoder.items() if index >= size and token.special
    )


def vocabulary_remarks(language_model: LanguageModel) -> list[str]:
    """What the model's files leave open, and how it was decided."""
    tokenizer, check = language_model.tokenizer, language_model.template_check
    if check is None:
        has = "has one, but plain is asked for" if tokenizer.chat_template else "has none"
        remarks = [f"chat template: plain (messages joined by blank lines); the tokenizer {has}"]
    else:
        remarks = ["chat template: the tokenizer's"]
        if check.split:
            remarks.append(f"its chat template spells {', '.join(check.split)} out in several tokens")
        if check.turn_end is not None and check.turn_end not in _named_ends(language_model):
            token = tokenizer.convert_ids_to_tokens(check.turn_end)
            remarks.append(
                f"{token} ends a completion too: the chat template writes it after an answer, though neither tokenizer "
                "nor generation config names it as an end"
            )
    if tokenizer.pad_token_id is None:
        token = tokenizer.convert_ids_to_tokens(language_model.pad_token_id)
        remarks.append(f"the tokenizer has no padding token; {token} takes its place, masked everywhere")
    for index in sorted(language_model.unknown_tokens):
        remarks.append(
            f"no prompt may hold {tokenizer.convert_ids_to_tokens(index)}: the model has no embedding for it"
        )
    return remarks


def _named_ends(language_model: LanguageModel) -> list[int]:
    """The end-of-sequence tokens without the chat template's."""
    return LanguageModel(language_model.model, language_model.tokenizer, "plain").eos_token_ids
