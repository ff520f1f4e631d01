"""Log-likelihoods of given texts under a model, and the model's choice among the choices of a problem.

Texts are encoded and their log-likelihoods summed as in lm-eval's `hf` backend (0.4.13, `TemplateLM.loglikelihood`), so
that verdicts equal lm-eval's.

Shapes: R rows, K last positions of each row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from evals.choices import Choices, Continuation, Likelihood, Scorer
from evals.sampler import Draw, Drawn
from evals.tasks.base import Problem
from harness.errors import RefusedError

if TYPE_CHECKING:
    from torch import Tensor

    from harness.models.language_model import LanguageModel

PASS_TOKENS = 16_384
"""Maximum number of tokens, including padding, in one forward pass."""
PASS_LOGITS = 2**27
"""Maximum number of logits in one forward pass: half a gigabyte in float32."""

_Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a context and of its continuation."""


def choose(draws: Sequence[Draw], scorer: Scorer) -> list[Drawn]:
    """Return the chosen text of each draw's problem, as if the model had written it. It is "" if there is no choice."""
    asked = [_choices(draw.require_problem()) for draw in draws]
    scored = iter(scorer.score([one for choices in asked for one in choices.continuations]))
    drawn = []
    for choices in asked:
        found = list(islice(scored, len(choices.continuations)))
        number = choices.choose(found)
        text, tokens = ("", 0) if number is None else (choices.texts[number], found[number].n_tokens)
        drawn.append(Drawn(text, tokens, truncated=False))
    return drawn


def _choices(problem: Problem) -> Choices:
    if problem.choices is None:
        raise ValueError(f"problem {problem.id} gives no choices, though its task says that all do")
    return problem.choices


def likelihoods(language_model: LanguageModel, continuations: Sequence[Continuation]) -> list[Likelihood]:
    """Return the log-likelihood of each continuation given its context, in order.

    Raises RefusedError if a continuation has no tokens or does not fit into the model's context, or if the model has no
    embedding for a token.
    """
    pairs = [_encode(language_model, one) for one in continuations]
    # The last token is predicted but never read. So one-token choices after the same context share a row.
    by_input: dict[tuple[int, ...], list[int]] = {}
    for index, (context, text) in enumerate(pairs):
        by_input.setdefault((*context, *text[:-1]), []).append(index)
    found: dict[int, Likelihood] = {}
    for batch, kept in _batches(language_model, by_input, pairs):
        for row, logps in zip(batch, _last_logps(language_model, batch, kept), strict=True):
            for index in by_input[row]:
                found[index] = _likelihood(logps, pairs[index][1])
    return [found[index] for index in range(len(pairs))]


def _encode(model: LanguageModel, one: Continuation) -> _Pair:
    """Return the token ids of a continuation's context and of its text.

    A space between the two belongs to the text, because tokenizers encode a space with the following word.
    """
    if one.context:
        # Both are encoded together, because a tokenizer may merge characters across the boundary.
        whole = model.encode(one.context + one.text)
        before = len(model.encode(one.context.rstrip()))
    else:
        tokens = model.encode_text(one.text)
        # The first token must be predicted from something. Without a context, that is the beginning-of-sequence token,
        # or if there is none, an end token. It is not added to a text that already begins with it.
        begin = model.tokenizer.bos_token_id
        begin = model.eos_token_ids[0] if begin is None else int(begin)
        whole, before = [*([] if tokens[:1] == [begin] else [begin]), *tokens], 1
    if not 0 < before < len(whole):
        raise RefusedError("sampling.choice_without_tokens", text=one.text, context=one.context[-80:])
    room = model.context_tokens
    # The last token is never an input, so it needs no room.
    if room is not None and len(whole) - 1 > room:
        raise RefusedError(
            "sampling.question_exceeds_context", n_tokens=len(whole), room=room, context=one.context[-80:]
        )
    return tuple(whole[:before]), tuple(whole[before:])


def _batches(
    model: LanguageModel, by_input: dict[tuple[int, ...], list[int]], pairs: Sequence[_Pair]
) -> Iterator[tuple[list[tuple[int, ...]], int]]:
    """Yield (batch, kept): inputs of similar length, and how many last positions of them need logits."""
    vocabulary = int(model.model.get_input_embeddings().weight.shape[0])
    batch: list[tuple[int, ...]] = []
    kept = 1
    # Inputs come longest first, so the first row of a batch is its width.
    for tokens in sorted(by_input, key=len, reverse=True):
        wanted = max(kept, *(len(pairs[index][1]) for index in by_input[tokens]))
        rows = len(batch) + 1
        if batch and (rows * len(batch[0]) > PASS_TOKENS or rows * wanted * vocabulary > PASS_LOGITS):
            yield batch, kept
            batch, wanted = [], max(len(pairs[index][1]) for index in by_input[tokens])
        batch.append(tokens)
        kept = wanted
    if batch:
        yield batch, kept


def _last_logps(model: LanguageModel, inputs: Sequence[Sequence[int]], kept: int) -> Tensor:
    """Return float32 log-probs [R, K, V] of the next token after each of the last K = `kept` positions.

    Inputs are padded on the left here.
    """
    import torch

    width = max(map(len, inputs))
    padded = torch.full((len(inputs), width), model.pad_token_id)
    mask = torch.zeros_like(padded)
    for row, tokens in enumerate(inputs):
        padded[row, width - len(tokens) :] = torch.tensor(tokens)
        mask[row, width - len(tokens) :] = 1
    device = model.model.device
    with torch.no_grad():
        logits = model.model(
            input_ids=padded.to(device),
            attention_mask=mask.to(device),
            # Padding must not shift positions. Padding itself is masked, so its positions only need to be valid.
            position_ids=(mask.cumsum(1) - 1).clamp_min(0).to(device),
            use_cache=False,
            logits_to_keep=kept,
        ).logits
    logps: Tensor = logits.float().log_softmax(-1)
    return logps


def _likelihood(logps: Tensor, tokens: Sequence[int]) -> Likelihood:
    """Return the likelihood of `tokens`, which are predicted by the last positions of logps [K, V]."""
    import torch

    mine = logps[len(logps) - len(tokens) :]
    wanted = torch.tensor(tokens, device=logps.device)
    logp = float(mine.gather(1, wanted[:, None]).sum())
    return Likelihood(logp, len(tokens), bool((mine.argmax(1) == wanted).all()))
