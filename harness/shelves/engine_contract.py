"""The promises of `harness.engines.base.Engine`, each as a function that tries it on an engine.

`bench selftest` tries them on the machine at hand, and the tests try them on every engine.

The model is `builtin:tiny`, which has learned when to stop, or the same function in a shape that vLLM has kernels for
(`with_wide_heads`). Keys are fixed, so the outcome does not vary from run to run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.engines.base import Completions, Engine, SamplingParams
from harness.engines.torch.decoding import sampling_logps
from harness.errors import BenchError
from harness.models.language_model import LanguageModel, PromptTooLongError
from harness.random_keys import random_key
from harness.training.sequences import Sequences, score_completions

PROBLEMS = ("3+5+9=", "1+2+3+4+5=", "9+9+9+9+9+9+9=", "2+7+1=", "4+4+8+1=", "6+1+6+1+6+1=")
SAMPLES = 4
PARAMS = SamplingParams(max_completion_tokens=40)
SAME_COMPANY_FRAC = 0.9
"""The least share of completions that must stay the same in another batch, if the engine's rounding depends on it."""
ROUNDING_NATS = {"cpu": 2e-5, "cuda": 1e-4}
"""The largest difference between log-probs in float32, by the type of the device."""


class BrokenPromiseError(BenchError):
    """An engine does not do what `harness.engines.base` says."""


@dataclass(frozen=True)
class ContractTrial:
    """An engine over a model in float32."""

    engine: Engine
    language_model: LanguageModel
    rounds_by_company: bool = False
    """True if the engine's rounding depends on the rest of the batch.

    A sample may then take another token in another batch; the contract leaves that open.
    """

    @property
    def prompts(self) -> list[list[int]]:
        return [self.language_model.encode(problem) for problem in PROBLEMS]

    @property
    def rounding_nats(self) -> float:
        return ROUNDING_NATS[self.language_model.model.device.type]

    def draw(self, params: SamplingParams = PARAMS) -> Completions:
        """Sample SAMPLES completions for each prompt."""
        return self.engine.generate(self.prompts, keys(), params)

    def require_same(self, got: list[list[int]], expected: list[list[int]], when: str) -> None:
        """Raise BrokenPromiseError if too many completions differ. when: ends the message."""
        same = sum(one == other for one, other in zip(got, expected, strict=True))
        least = SAME_COMPANY_FRAC * len(expected) - 1 if self.rounds_by_company else len(expected)
        require(same >= least, f"{len(expected) - same} of {len(expected)} completions are others {when}")


Promise = Callable[[ContractTrial], None]
PROMISES: dict[str, Promise] = {}
"""The promises, keyed by their text. Each raises BrokenPromiseError."""


def promise(kept: Promise) -> Promise:
    PROMISES[kept.__name__.replace("_", " ")] = kept
    return kept


def require(is_so: bool | Tensor, otherwise: str) -> None:
    """Raise BrokenPromiseError with `otherwise` as its message, unless the condition holds."""
    if not bool(is_so):
        raise BrokenPromiseError(otherwise)


def keys(prompts: int = len(PROBLEMS), samples: int = SAMPLES) -> Tensor:
    """Return fixed random keys, [prompts, samples] int64."""
    return torch.tensor(
        [[random_key(0, "rollout", 1, row, sample) for sample in range(samples)] for row in range(prompts)]
    )


def rows_of(completions: Completions) -> list[list[int]]:
    """Return the tokens of each completion, without padding."""
    return [row[:length] for row, length in zip(completions.tokens.tolist(), completions.lengths.tolist(), strict=True)]


def repeated(prompts: Sequence[Sequence[int]], samples: int = SAMPLES) -> list[Sequence[int]]:
    """Return the prompt of each row: every prompt `samples` times."""
    return [prompt for prompt in prompts for _ in range(samples)]


def trainer_logps(
    language_model: LanguageModel, prompts: Sequence[Sequence[int]], drawn: Completions, temperature: float = 1.0
) -> Tensor:
    """Compute the log-probs [N, T] that training assigns to the completions, on the CPU; 0 in padding."""
    rows = torch.arange(len(drawn.lengths))
    sequences = Sequences(repeated(prompts, len(rows) // len(prompts)), drawn.tokens, drawn.lengths)
    with torch.inference_mode():
        logps, _ = score_completions(language_model.model, sequences, rows, temperature, language_model.pad_token_id)
    return logps.cpu()


@promise
def shapes_and_padding(trial: ContractTrial) -> None:
    drawn = trial.draw()
    count, longest = drawn.tokens.shape
    require(count == len(PROBLEMS) * SAMPLES, f"{count} rows for {len(PROBLEMS)} prompts x {SAMPLES} samples")
    require(longest == drawn.lengths.max(), "the rows are longer than the longest completion")
    types = (drawn.tokens.dtype, drawn.lengths.dtype, drawn.logps.dtype, drawn.truncated.dtype)
    require(types == (torch.int64, torch.int64, torch.float32, torch.bool), f"the types are {types}")
    padding = torch.arange(longest) >= drawn.lengths[:, None]
    require(padding.any() and (drawn.logps[~padding] < 0).any(), "every completion has the same length, or log-prob 0")
    require((drawn.tokens[padding] == trial.language_model.pad_token_id).all(), "the padding holds other tokens")
    require((drawn.logps[padding] == 0).all(), "log-probs in the padding are not 0")


@promise
def each_sample_is_told_of_once(trial: ContractTrial) -> None:
    for stop in ((), ("+", "=")):
        told: list[tuple[int, list[int], bool]] = []
        params = SamplingParams(12, stop=stop)

        def tell(row: int, tokens: list[int], truncated: bool, told: list[tuple[int, list[int], bool]] = told) -> None:
            told.append((row, tokens, truncated))

        drawn = trial.engine.generate(trial.prompts, keys(), params, tell)
        expected = [*zip(range(len(drawn.lengths)), rows_of(drawn), drawn.truncated.tolist(), strict=True)]
        require(sorted(told) == expected, "what on_finished was told is not what came back")


@promise
def log_probs_are_those_of_the_trainer(trial: ContractTrial) -> None:
    for temperature in (1.0, 0.7):
        drawn = trial.draw(SamplingParams(40, temperature))
        expected = trainer_logps(trial.language_model, trial.prompts, drawn, temperature)
        apart = (drawn.logps - expected).abs().max().item()
        require(
            apart <= trial.rounding_nats, f"log-probs lie up to {apart:.2g} nats apart at temperature {temperature}"
        )


@promise
def greedy_is_that_of_transformers(trial: ContractTrial) -> None:
    model = trial.language_model.model
    drawn = trial.engine.generate(trial.prompts, keys(samples=1), SamplingParams(24, temperature=0))
    for prompt, completion in zip(trial.prompts, rows_of(drawn), strict=True):
        ids = torch.tensor([prompt], device=model.device)
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        require(completion == whole[0, len(prompt) :].tolist(), f"after {prompt} it draws {completion}")
    require((drawn.logps == 0).all(), "log-probs of greedy tokens are not 0")


@promise
def a_key_gives_the_same_tokens_whatever_else_is_in_the_batch(trial: ContractTrial) -> None:
    generate, prompts = trial.engine.generate, trial.prompts
    together = rows_of(generate(prompts, keys(), PARAMS))
    alone = [
        row
        for index, prompt in enumerate(prompts)
        for row in rows_of(generate([prompt], keys()[index : index + 1], PARAMS))
    ]
    trial.require_same(alone, together, "when each prompt is alone")
    backwards = rows_of(generate(prompts[::-1], keys().flip(0, 1), PARAMS))
    trial.require_same(backwards[::-1], together, "in another order")
    last_sample = rows_of(generate(prompts, keys()[:, -1:], PARAMS))
    trial.require_same(last_sample, together[SAMPLES - 1 :: SAMPLES], "with fewer samples")
    apart = rows_of(generate(repeated(prompts), keys().reshape(-1, 1), PARAMS))
    trial.require_same(apart, together, "when each prompt is repeated")


@promise
def keys_are_what_varies_between_samples(trial: ContractTrial) -> None:
    drawn = rows_of(trial.engine.generate(trial.prompts[:1], keys(1, 16), PARAMS))
    require(len({tuple(row) for row in drawn}) > 1, "16 keys give one completion")
    alike = rows_of(trial.engine.generate(trial.prompts[:1], keys(1, 1).expand(1, 3), PARAMS))
    require(alike == [alike[0]] * 3, "one key gives several completions")


@promise
def the_same_call_gives_the_same_bits(trial: ContractTrial) -> None:
    one, other = trial.draw(), trial.draw()
    require(torch.equal(one.tokens, other.tokens), "the tokens differ")
    require(torch.equal(one.logps, other.logps), "the log-probs differ")


@promise
def frequencies_are_those_of_the_model(trial: ContractTrial) -> None:
    """Compare Pearson's chi-squared statistic of 4000 first tokens after one prompt with its mean and sd."""
    count, prompt = 4000, trial.prompts[:1]
    for params in (SamplingParams(1, 2.0), SamplingParams(1, 2.0, top_k=8)):
        drawn = trial.engine.generate(prompt, keys(1, count), params)
        logps = _logps_after(trial.language_model, prompt[0], params)[-1]
        expected = logps.exp().double() * count
        observed = drawn.tokens[:, 0].bincount(minlength=len(expected)).double()
        # The chi-squared approximation needs an expected count of about 5 per token. Rarer tokens are tested together
        # below.
        common = expected >= 5
        kinds = int(common.sum())
        require(kinds >= 5, "it takes a spread distribution to tell")
        statistic = ((observed - expected)[common] ** 2 / expected[common]).sum().item()
        # With `kinds - 1` degrees of freedom, chi-squared has that mean and the variance 2 (kinds - 1). The bound is
        # mean + 4 sd.
        most = kinds - 1 + 4 * math.sqrt(2 * (kinds - 1))
        require(statistic <= most, f"chi-squared is {statistic:.0f} over {kinds} tokens, expected at most {most:.0f}")
        rare, expected_rare = observed[~common].sum().item(), expected[~common].sum().item()
        # The number of rare tokens is about Poisson, with variance equal to the mean. The last 4 covers means near 0.
        bound = expected_rare + 4 * math.sqrt(expected_rare) + 4
        require(rare <= bound, f"{rare:.0f} rare tokens are drawn, expected at most {bound:.0f}")


@promise
def log_probs_are_of_the_truncated_distribution(trial: ContractTrial) -> None:
    """Compare each token's log-prob with that of a forward pass over everything before it."""
    some = trial.prompts[:2]
    for params in (
        SamplingParams(24, top_k=2),
        SamplingParams(24, top_p=0.6),
        SamplingParams(24, temperature=0.5, top_k=5, top_p=0.9),
    ):
        drawn = trial.engine.generate(some, keys(2, 2), params)
        for row, (prompt, tokens) in enumerate(zip(repeated(some, 2), rows_of(drawn), strict=True)):
            # The logits at a position predict the next token, so those of the completion begin one position earlier.
            logps = _logps_after(trial.language_model, [*prompt, *tokens], params)[len(prompt) - 1 : -1]
            expected = logps.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            apart = (drawn.logps[row, : len(tokens)] - expected).abs().max().item()
            require(apart <= trial.rounding_nats, f"log-probs lie up to {apart:.2g} nats apart with {params}")


def _logps_after(language_model: LanguageModel, tokens: Sequence[int], params: SamplingParams) -> Tensor:
    """Compute the log-probs [len(tokens), V] after each token, as sampling truncates them, on the CPU."""
    with torch.inference_mode():
        logits = language_model.model(torch.tensor([list(tokens)], device=language_model.model.device)).logits[0]
    return sampling_logps(logits, params.temperature, params.top_p, params.top_k).cpu()


@promise
def weights_changed_in_place_are_those_of_the_next_call(trial: ContractTrial) -> None:
    before = trial.draw()
    weight = trial.language_model.model.get_input_embeddings().weight
    original = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(0.5)
        changed = trial.draw()
        expected = trainer_logps(trial.language_model, trial.prompts, changed)
    # The model is shared with the promises that are tried next.
    finally:
        with torch.no_grad():
            weight.copy_(original)
    require(rows_of(changed) != rows_of(before), "halved embeddings change no completion")
    apart = (changed.logps - expected).abs().max().item()
    require(apart <= trial.rounding_nats, f"after a change log-probs lie up to {apart:.2g} nats from the trainer's")
    require(rows_of(trial.draw()) == rows_of(before), "with the weights put back it draws other tokens")


@promise
def completions_end_with_end_of_sequence_or_are_truncated(trial: ContractTrial) -> None:
    drawn = trial.draw(SamplingParams(12))
    ends = [row[-1] in trial.language_model.eos_token_ids for row in rows_of(drawn)]
    require(any(ends) and not all(ends), "it takes completions of both kinds to tell")
    require(drawn.truncated.tolist() == [not end for end in ends], "what ended by itself counts as truncated")
    for row, end in zip(rows_of(drawn), ends, strict=True):
        require(end or len(row) == 12, f"{row} has no end and is shorter than the limit")
        require(not set(row[:-1]) & set(trial.language_model.eos_token_ids), f"{row} goes on after its end")
    whole = trial.engine.generate(trial.prompts[:1], keys(1, 1), PARAMS)
    # The limit equals the completion's length first, then it is one token shorter.
    for cut in (0, 1):
        limit = SamplingParams(int(whole.lengths.item()) - cut)
        truncated = trial.engine.generate(trial.prompts[:1], keys(1, 1), limit).truncated.item()
        require(truncated == bool(cut), "an end on the last token that fits counts as truncation, or the reverse")


@promise
def a_shorter_limit_cuts_the_same_completions(trial: ContractTrial) -> None:
    long, short = (rows_of(trial.draw(SamplingParams(limit))) for limit in (40, 7))
    require(short == [row[:7] for row in long], "7 tokens are not the first of 40")
    require(all(len(row) == 1 for row in rows_of(trial.draw(SamplingParams(1)))), "a limit of 1 gives other lengths")


@promise
def stop_strings_end_a_completion(trial: ContractTrial) -> None:
    """Check that a stopped completion is the free one up to its first stop string, since keys decide the noise."""
    free, decode = rows_of(trial.draw()), trial.language_model.decode
    for stop in (("#",), (",1",), ("wait", "#1")):
        stopped = trial.draw(SamplingParams(40, stop=stop))
        cut = 0
        for row, got, truncated in zip(free, rows_of(stopped), stopped.truncated.tolist(), strict=True):
            # The tokens are decoded together, since a stop string may span several of them.
            ends = [end for end in range(1, len(row) + 1) if any(text in decode(row[:end]) for text in stop)]
            require(got == row[: ends[0] if ends else len(row)], f"stop={stop}: {row} is cut to {got}")
            require(not (ends and truncated), f"stop={stop}: {got} counts as truncated")
            cut += bool(ends)
        require(cut > 0, f"no completion has a stop string of {stop}")


@promise
def what_it_cannot_answer_is_refused(trial: ContractTrial) -> None:
    prompts, generate = trial.prompts, trial.engine.generate
    context = trial.language_model.model.config.max_position_embeddings
    too_long = [prompts[0][:1] * (context - PARAMS.max_completion_tokens + 1)]
    refused: dict[str, tuple[type[Exception], Callable[[], Completions]]] = {
        "an empty prompt": (PromptTooLongError, lambda: generate([prompts[0], []], keys(2), PARAMS)),
        "a prompt without room": (PromptTooLongError, lambda: generate(too_long, keys(1), PARAMS)),
        "no prompts": (ValueError, lambda: generate([], torch.zeros((0, 2), dtype=torch.int64), PARAMS)),
        "no tokens": (ValueError, lambda: generate(prompts, keys(), SamplingParams(0))),
    }
    for what, (error, ask) in refused.items():
        try:
            ask()
        except error:
            continue
        raise BrokenPromiseError("shelves.not_refused", what=what, error=error.__name__)
    fits = generate([prompts[0][:1] * (context - PARAMS.max_completion_tokens)], keys(1, 1), PARAMS)
    require(fits.lengths.item() >= 1, "a prompt that just fits gets no completion")


WIDE_HEAD = 32
"""The smallest head that vLLM 0.32 has a kernel for. The heads of the tiny model are 24 wide."""


def with_wide_heads(tiny: LanguageModel) -> LanguageModel:
    """Return the tiny model with heads that vLLM has kernels for: the same function in another shape.

    Zeros pad the heads. The queries are scaled to keep the scale of attention. The angles are theta ** (-2i / width),
    so theta changes with the width. A rotation turns dimensions i and i + width / 2, so each half is padded separately.
    """
    narrow = tiny.model
    config = copy.deepcopy(narrow.config)
    width, config.head_dim = config.head_dim, WIDE_HEAD
    # theta' ** (-2i / WIDE_HEAD) = theta ** (-2i / width) for theta' = theta ** (WIDE_HEAD / width).
    config.rope_parameters["rope_theta"] **= WIDE_HEAD / width
    wide = type(narrow)(config).to(device=narrow.device, dtype=narrow.dtype)
    heads = config.num_attention_heads

    def rows(weight: Tensor) -> Tensor:
        """Pad the rows of each head with zeros: [heads * width, D] -> [heads * WIDE_HEAD, D]."""
        filled = weight.new_zeros(heads, 2, WIDE_HEAD // 2, weight.shape[1])
        filled[:, :, : width // 2] = weight.view(heads, 2, width // 2, -1)
        return filled.reshape(heads * WIDE_HEAD, -1)

    weights = narrow.state_dict()
    for name, weight in weights.items():
        match name.split(".")[-2]:
            case "q_proj":
                # Attention divides by the square root of the head's width, which has grown.
                weights[name] = rows(weight) * math.sqrt(WIDE_HEAD / width)
            case "k_proj" | "v_proj":
                weights[name] = rows(weight)
            case "o_proj":
                weights[name] = rows(weight.T).T.contiguous()
    wide.load_state_dict(weights)
    wide.generation_config = narrow.generation_config
    return replace(tiny, model=wide.eval())
