"""The likelihood of gold texts after a completion's reasoning: for rewards, and as a supervised term of the loss.

The reasoning of a completion is its text up to the answer. A gold answer follows the marker that opens an answer. If a
completion has no such marker, it is appended. A gold solution replaces the marker. A frozen generator reads all of this
as text, with its own tokenizer. The policy reads the tokens that it sampled.

Shapes: N completions, T tokens of the longest completion.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from evals.grading.answer_form import ANSWER_FORMS, AnswerForm
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.run_spec import RunSpec
from harness.models.language_model import LanguageModel, TokenCharacters
from harness.rewards import Attempt
from harness.rewards.parts.verifier_free import Jepo, VrCli, gold_columns, perplexity_improvement
from harness.training.prefix_attention import shares_prompts
from harness.training.sequences import PassTokens, Sequences, SequenceScorer, score_completions

if TYPE_CHECKING:
    from harness.training.batch import Batch


@dataclass(frozen=True)
class GoldAnswers:
    """The gold answers of N completions, for the supervised term of JEPO (2503.19618)."""

    sequences: Sequences
    """Each prompt is a completion's prompt, reasoning and opening marker. Each completion is the gold answer."""
    weights: Tensor
    """[N] float32: weight of each answer's log-likelihood in the loss. It is divided by the denominator of the
    completion's tokens.
    """

    def rows(self, chosen: Tensor) -> GoldAnswers:
        return GoldAnswers(self.sequences.rows(chosen), self.weights[chosen])

    @classmethod
    def joined(cls, parts: Sequence[GoldAnswers]) -> GoldAnswers:
        return cls(Sequences.joined([one.sequences for one in parts]), torch.cat([one.weights for one in parts]))

    def add_gradient(
        self, scorer: SequenceScorer, rows: Tensor, divisors: Tensor, backward: Callable[[Tensor, PassTokens], None]
    ) -> Tensor:
        """Call `backward` on the supervised loss of some rows (int64 indices), and return the detached loss.

        The loss is -sum over rows of weight / divisor x log-likelihood.

        divisors [len(rows)]: float.
        """
        factors = torch.zeros_like(self.weights)
        factors[rows] = self.weights[rows] / divisors
        shared = shares_prompts(scorer.policy.get_decoder())
        losses = []
        for micro in self.sequences.micro_batches(rows, scorer.budget.tokens, shared):
            part = scorer.part(self.sequences, micro, factors=factors)
            logps, _ = scorer.score(part, part.hidden(scorer.policy))
            loss = -(part.rows["factors"] * logps.sum(1)).sum()
            backward(loss, self.sequences.pass_tokens(micro, shared))
            losses.append(loss.detach())
        return torch.stack(losses).sum()


class GoldScorer:
    """Scores the likelihood of gold texts, for the reward parts that need it."""

    def __init__(self, spec: RunSpec, policy: LanguageModel, generator: LanguageModel | None) -> None:
        """Store the models that score. generator: the frozen model of `reward.vr_cli`; None without this part."""
        self._spec, self._policy, self._generator = spec, policy, generator
        self._form = answer_form(spec)
        self._template = get_template(spec.task.template)
        self._characters = TokenCharacters(policy.decode)

    def scored(self, batch: Batch, judges_reasoning: bool) -> Batch:
        """Return the graded batch with gold scores of its attempts, and gold answers for the supervised loss term.

        Equal rows are scored once, so that they tie exactly.

        judges_reasoning: True if the reward is independent of all text after the opening markers.
        """
        attempts, answers = list(batch.attempts), None
        ends = [self._token_ends(batch.sequences, row, attempt) for row, attempt in enumerate(attempts)]
        if "policy" in self._spec.reward.gold_scorers:
            read = self._policy_rows(batch.sequences, attempts, ends)
            logps = self._logps(self._policy, read, self._spec.rollout.temperature)
            attempts = [replace(one, answer_logp=logp) for one, logp in zip(attempts, logps, strict=True)]
            if self._spec.reward.has_answer_term:
                weight, part = self._spec.reward.parts[Jepo.name], self._spec.reward.of(Jepo)
                by_group = map(part.answer_weights, batch.by_group(logps))
                answers = GoldAnswers(read, weight * torch.tensor([one for weights in by_group for one in weights]))
        if self._generator is not None:
            gains = self._improvements(self._generator, attempts)
            attempts = [replace(one, perplexity_improvement=gain) for one, gain in zip(attempts, gains, strict=True)]
        # If the reward ignores the text after the opening marker, that text must not enter the loss either.
        rewarded = self._reasoning_tokens(attempts, ends) if judges_reasoning else None
        columns = gold_columns(batch.by_group(attempts))
        return replace(batch, attempts=attempts, reward_columns=columns, answers=answers, rewarded_tokens=rewarded)

    def _token_ends(self, sequences: Sequences, row: int, attempt: Attempt) -> list[int]:
        """Return, for each token of a completion, how many characters of the text are complete after the token."""
        drawn = sequences.completions[row, : attempt.n_tokens].tolist()
        return list(accumulate(self._characters.of(drawn, attempt.text)))

    def _reasoning_tokens(self, attempts: Sequence[Attempt], ends: Sequence[list[int]]) -> Tensor:
        """Return the number of tokens up to the end of each opening marker, [N] int64, or all if there is none."""
        counts = []
        for attempt, own in zip(attempts, ends, strict=True):
            opening = None if self._form is None else self._form.opening_in(attempt.text)
            counts.append(attempt.n_tokens if opening is None else bisect_left(own, opening[1]) + 1)
        return torch.tensor(counts)

    def _policy_rows(self, sequences: Sequences, attempts: Sequence[Attempt], ends: Sequence[list[int]]) -> Sequences:
        """Build the policy's input rows: each completion's prompt and reasoning, as sampled, then the gold answer.

        Raises ValueError if the task has no marker that opens answers.
        """
        form, policy = self._form, self._policy
        if form is None:
            raise ValueError(f"the task {self._spec.task.train} has no mark that opens an answer")
        prompts = []
        for row, (attempt, own) in enumerate(zip(attempts, ends, strict=True)):
            text, opening = attempt.text, form.opening_in(attempt.text)
            end = len(text) if opening is None else opening[1]
            last = bisect_left(own, end)
            # If the last token extends into the answer, it is dropped, and its part of the reasoning is encoded again.
            whole = last + (own[last] == end) if end else 0
            written = own[whole - 1] if whole else 0
            rest = text[written:end] + (form.opening if opening is None else "")
            drawn = sequences.completions[row, :whole].tolist()
            prompts.append([*sequences.prompts[row], *drawn, *policy.encode_text(rest)])
        return Sequences.of(prompts, [gold_tokens(attempt.problem, "answer", form, policy) for attempt in attempts])

    def _improvements(self, generator: LanguageModel, attempts: Sequence[Attempt]) -> list[float]:
        """Return [N] the `perplexity_improvement` of the gold text by each attempt's reasoning."""
        kind = self._spec.reward.of(VrCli).gold
        form = self._form if kind == "answer" else None
        opening = "" if form is None else form.opening
        by_id = {attempt.problem.id: attempt.problem for attempt in attempts}
        asked = {id: generator.encode(self._template.ask(one)) for id, one in by_id.items()}
        gold = {id: gold_tokens(one, kind, form, generator) for id, one in by_id.items()}
        # Rows without reasoning come first. Their perplexity is PPL_before.
        prompts = [[*prompt, *generator.encode_text(opening)] for prompt in asked.values()]
        texts = [*gold.values()]
        for attempt in attempts:
            reasoning = self._reasoning(attempt.text, form)
            prompts.append([*asked[attempt.problem.id], *generator.encode_text(reasoning)])
            texts.append(gold[attempt.problem.id])
        logps = self._logps(generator, Sequences.of(prompts, texts), temperature=1.0)
        # Not strict, because `logps` continues with the rows that have reasoning.
        before = dict(zip(asked, logps, strict=False))
        return [
            perplexity_improvement(before[attempt.problem.id], after, len(gold[attempt.problem.id]))
            for attempt, after in zip(attempts, logps[len(asked) :], strict=True)
        ]

    def _reasoning(self, text: str, form: AnswerForm | None) -> str:
        """Return a completion's reasoning, followed by the opening marker unless `form` is None (gold solutions)."""
        if form is not None:
            opening = form.opening_in(text)
            return text + form.opening if opening is None else text[: opening[1]]
        found = None if self._form is None else self._form.opening_in(text)
        return text if found is None else text[: found[0]]

    @torch.no_grad()
    def _logps(self, language_model: LanguageModel, sequences: Sequences, temperature: float) -> list[float]:
        """Return the log-prob of each of the N completions, summed over its tokens, in nats."""
        model, spec = language_model.model, self._spec
        rows, same_as = sequences.distinct_rows
        found = torch.zeros(len(same_as), dtype=torch.float64)
        shared = shares_prompts(model.get_decoder())
        for micro in sequences.micro_batches(rows, spec.train.micro_batch_tokens, shared):
            logps, _ = score_completions(
                model, sequences, micro, temperature, language_model.pad_token_id, spec.train.logits_chunk_tokens
            )
            found[micro] = logps.double().sum(1).cpu()
        return found[same_as].tolist()


def answer_form(spec: RunSpec) -> AnswerForm | None:
    """Return the answer form of the training task, or None if the task has no marker that opens answers."""
    return ANSWER_FORMS.get(get_task(spec.task.train).extract)


def gold_tokens(
    problem: Problem, kind: Literal["answer", "solution"], form: AnswerForm | None, language_model: LanguageModel
) -> list[int]:
    """Return the token ids of a problem's gold text.

    An answer ends with the closing marker, or if the form has none, with the end-of-sequence token. A solution always
    ends with the end-of-sequence token.
    Raises ValueError if the problem has no solution, or if its answer has no form.
    """
    if kind == "solution":
        if problem.solution is None:
            raise ValueError(f"the problem {problem.id} has no solution")
        return language_model.encode_completion(problem.solution)
    if form is None:
        raise ValueError(f"no mark opens the answer to the problem {problem.id}")
    text = form.behind_opening(problem.answer)
    return language_model.encode_text(text) if form.closing else language_model.encode_completion(text)
