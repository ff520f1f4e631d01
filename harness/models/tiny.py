"""The tiny model, untrained: a Llama of about 0.23M parameters over characters.

`builtin:tiny` is the same model with trained weights. Two layers are enough for running sums of single digits, and few
layers mean little overhead per token on a CPU.
"""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "0123456789+=,#wait"
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CONTEXT_TOKENS = 128


VOCABULARY = [PAD, EOS, UNKNOWN, *CHARACTERS]


def tiny_tokenizer(vocab_size: int = len(VOCABULARY)) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character, which adds no special tokens.

    vocab_size: if it exceeds the vocabulary, the additional tokens are never produced by encoding.
    """
    words = [*VOCABULARY, *(f"[{number}]" for number in range(len(VOCABULARY), vocab_size))]
    vocabulary = {token: index for index, token in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN)


def tiny_model(seed: int) -> LlamaForCausalLM:
    """Return the model with random weights from the seed. torch's global generator does not change."""
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=96,
        intermediate_size=272,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
