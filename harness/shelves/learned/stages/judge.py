"""The judge of `reward.parts.pairwise`: a copy of the starting weights that learns to compare two completions.

It learns from pairs of completions of the starting weights, labelled by the grader. They are the pairs that a
Bradley-Terry model with equal options learns from, without contradictory ones. First it is fine-tuned on scores that
follow the labels. Then it samples scores itself, and GRPO rewards those that score the better completion higher
(Writing-Zero, 2506.00103). Pairs are shown in both orders.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from evals.prompts import get_template, template_version
from harness.config.hashing import graded_hash
from harness.config.model import NoLora, SupervisedColdStart
from harness.config.rollout import NoPairs, RolloutSpec
from harness.config.run_spec import RunSpec
from harness.config.train import TrainSpec
from harness.errors import RefusedError
from harness.run.prompts import candidates, places_of_step
from harness.run.stages import Stage, StageContext
from harness.shelves.learned.judging import AnswerPair, Scores, position_metrics, preferences
from harness.shelves.learned.parts import PairwiseJudge
from harness.shelves.learned.stages.reward_model import (
    draw_labelled_pairs,
    is_trained,
    labelled_prompts,
    mean_of_last,
    read_report,
    write_model,
)
from harness.training.demonstrations import Demonstration

if TYPE_CHECKING:
    from torch import Tensor

    from harness.models.language_model import LanguageModel
    from harness.run.learning.base import CompletionScorer
    from harness.shelves.learned.generative_judge import GenerativeJudge
    from harness.training.batch import Batch

BETTER, WORSE = 8, 2
"""The scores, from 0 to 10, in demonstrations."""
MICRO_BATCH_TOKENS = 4096


class PairQuestion(NamedTuple):
    """A pair in the order in which the judge sees it, and whether the label prefers its first completion."""

    pair: AnswerPair
    first_is_better: bool

    def is_answered_by(self, scores: Scores) -> bool:
        """Return whether the completion with the better label has the higher score."""
        first, second = scores
        return first > second if self.first_is_better else second > first


def without_contradictions(pairs: Sequence[AnswerPair]) -> list[AnswerPair]:
    """Return distinct pairs, the better completion first.

    Pairs that also occur with the opposite label are left out.
    """
    labelled = dict.fromkeys(pairs)
    return [pair for pair in labelled if pair.swapped not in labelled]


def _make(folder: Path, context: StageContext) -> None:
    """Sample the pairs, train the judge, and write it with its report.

    Progress counts prompts whose completions are sampled, then optimiser steps of both phases.

    The report is a reward model's (`read_report`) with these differences. `pairs` counts distinct pairs without
    contradictions, `contradictory_pairs` the labels left out. `cold_start_loss`, in nats per token, and `train_reward`
    are means over the last tenth of the steps of their phase. `after_cold_start` and `held_out` are the `_quality` on
    held-out pairs before and after the policy gradient.

    Raises RefusedError if there is nothing to learn from, or if training diverges.
    """
    from harness.shelves.learned.generative_judge import GenerativeJudge
    from harness.training.cold_start import fine_tune
    from harness.training.reference import frozen_copy

    spec = context.spec
    options = spec.reward.of(PairwiseJudge)
    store = context.samples(folder, keeps_tokens=True)
    steps = options.cold_start_steps + options.steps
    found = draw_labelled_pairs(context, PairwiseJudge, store, steps)
    start, prompts = context.start, options.prompts
    labels, held_out = (_in_words(found.drawn, rows) for rows in (found.labels, found.held_out))
    pairs = without_contradictions(labels)
    if not pairs:
        store.drop()
        raise RefusedError("shelves.learned.all_labels_contradict", n_pairs=len(labels))
    kept = set(pairs)
    # Both orders, so that the judge cannot learn to prefer a position.
    questions = [one for pair in pairs for one in (PairQuestion(pair, True), PairQuestion(pair.swapped, False))]
    # The starting weights stay as they are for other jobs of this worker; training is in float32.
    model = frozen_copy(start.model).float().requires_grad_(True)
    judge = GenerativeJudge.of(spec, replace(start, model=model))
    losses: list[float] = []

    def on_step(step: int, _: int, loss: float) -> None:
        losses.append(loss)
        context.tell_progress(prompts + step, prompts + steps)

    shown = _demonstrations(judge, questions, options)
    fine_tune(judge.language_model, _cold_start(options), on_step, shown)
    after_cold_start = _quality(judge, held_out)
    rewards: list[float] = []
    for reward in _policy_gradient(judge, questions, spec):
        rewards.append(reward)
        context.tell_progress(prompts + options.cold_start_steps + len(rewards), prompts + steps)
    report = found.account(options) | {
        "pairs": len(pairs),
        "contradictory_pairs": sum(pair not in kept for pair in labels),
        "cold_start_loss": mean_of_last(losses),
        "train_reward": mean_of_last(rewards),
        "held_out_pairs": len(held_out),
        "after_cold_start": after_cold_start,
        "held_out": _quality(judge, held_out) if rewards else after_cold_start,
    }
    write_model(folder, judge.language_model.save, report)
    store.drop()


def _in_words(drawn: Batch, rows: Tensor) -> list[AnswerPair]:
    """Return pairs of texts, the better completion first, from pairs of rows [P, 2]."""
    tried = [(drawn.attempts[better], drawn.attempts[worse]) for better, worse in rows.tolist()]
    return [AnswerPair(better.problem.problem, better.text, worse.text) for better, worse in tried]


def _cold_start(options: PairwiseJudge) -> SupervisedColdStart:
    return SupervisedColdStart(
        data="labelled pairs",
        steps=options.cold_start_steps,
        batch_size=options.batch_size,
        learning_rate=options.cold_start_learning_rate,
    )


def _demonstrations(
    judge: GenerativeJudge, questions: Sequence[PairQuestion], options: PairwiseJudge
) -> Iterator[Demonstration]:
    """Yield questions with scores that follow their labels, endlessly.

    Raises RefusedError if the scores are longer than the limit for an answer.
    """
    from harness.shelves.learned.generative_judge import written_scores

    answers = {
        first_is_better: judge.language_model.encode_completion(written_scores(*scores))
        for first_is_better, scores in ((True, (BETTER, WORSE)), (False, (WORSE, BETTER)))
    }
    longest = max(map(len, answers.values()))
    if longest > options.max_completion_tokens:
        raise RefusedError(
            "shelves.learned.scores_exceed_limit", max_completion_tokens=options.max_completion_tokens, n_tokens=longest
        )
    for step in itertools.count(1):
        for place in places_of_step(len(questions), options.seed, step, options.batch_size):
            pair, first_is_better = questions[place]
            yield Demonstration(judge.prompt(pair), answers[first_is_better])


def _policy_gradient(judge: GenerativeJudge, questions: Sequence[PairQuestion], spec: RunSpec) -> Iterator[float]:
    """Train the judge in place by GRPO; yield the mean reward of each step."""
    import torch

    from harness.run.learning.writers import rollout_keys
    from harness.training.batch import Batch, filter_rows
    from harness.training.optimizer import DivergedError
    from harness.training.policy_update import PolicyUpdate

    options, own = spec.reward.of(PairwiseJudge), _spec_of_training(spec)
    language_model = judge.language_model
    update = PolicyUpdate(language_model.model, own, language_model.pad_token_id)
    for step in range(1, options.steps + 1):
        places = places_of_step(len(questions), options.seed, step, options.batch_size)
        asked = [questions[place] for place in places]
        prompts = [judge.prompt(question.pair) for question in asked]
        keys = rollout_keys(options.seed, step, range(len(asked)), options.samples_per_pair)
        rows = [prompt for prompt in prompts for _ in range(options.samples_per_pair)]
        drawn = judge.draw(rows, keys.flatten().tolist(), own.rollout.temperature)
        batch = Batch.of_completions(prompts, drawn, 0, judge.max_completion_tokens)
        scores = judge.read(batch.sequences.completions, batch.sequences.lengths, batch.truncated)
        groups = batch.groups.tolist()
        right = torch.tensor([asked[group].is_answered_by(one) for group, one in zip(groups, scores, strict=True)])
        # The reward is 1 if the scores order the pair as its label does, else 0.
        batch = replace(batch, rewards=right.float(), correct=right)
        try:
            update.run(filter_rows(own.policy_gradient, batch), step)
        except DivergedError as error:
            raise RefusedError("shelves.learned.judge_diverged", step=step, error=error) from None
        yield float(batch.rewards.mean())


def _spec_of_training(spec: RunSpec) -> RunSpec:
    """Return the spec of the judge's policy-gradient steps.

    It is GRPO, independent of the cell's own training settings.
    """
    from algorithms import Objective, preset

    options = spec.reward.of(PairwiseJudge)
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"lora": NoLora()}),
            "objective": preset("grpo", Objective),
            "pairs": NoPairs(),
            "rollout": RolloutSpec(
                prompts_per_step=options.batch_size,
                samples_per_prompt=options.samples_per_pair,
                max_completion_tokens=options.max_completion_tokens,
            ),
            "train": TrainSpec(
                device=spec.train.device,
                steps=max(1, options.steps),
                learning_rate=options.learning_rate,
                micro_batch_tokens=MICRO_BATCH_TOKENS,
                reference_rows=0,
                token_records_max_tokens=0,
            ),
            "seed": options.seed,
        }
    )


def _quality(judge: GenerativeJudge, pairs: Sequence[AnswerPair]) -> dict[str, float | None]:
    """Compute the judge's accuracy on pairs whose first completion is the better one.

    accuracy: share of pairs in which both orders prefer it. one_order_accuracy: share of single verdicts that prefer
    it, which compares with the accuracy of a scalar reward model. `position_metrics` are included. Values are None
    without pairs.
    """
    given = preferences(judge, pairs)
    verdicts = [verdict == 1 for one in given for verdict in (one.in_order, one.swapped)]
    return {
        "accuracy": _mean([one.agreed == 1 for one in given]),
        "one_order_accuracy": _mean(verdicts),
        **position_metrics(given),
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _remark(folder: Path) -> str:
    report = read_report(folder)
    quality, before = report["held_out"], report["after_cold_start"]
    made = f"judge of {report['pairs']} pairs, {report['contradictory_pairs']} labels left out as contradictory: "
    if quality["accuracy"] is None:
        return made + "no pairs were held out"
    return made + (
        f"right on {quality['accuracy']:.0%} of held-out pairs in both orders, and on "
        f"{quality['one_order_accuracy']:.0%} in a single order ({before['one_order_accuracy']:.0%} after the cold "
        f"start); {quality['flip_frac']:.0%} flip with the order"
    )


def judge_hash(spec: RunSpec) -> str:
    """Return the hash of a judge. It is the same for all seeds, and for all uses of its verdicts."""
    template = spec.reward.of(PairwiseJudge).template_of(spec)
    options = [f"reward.{PairwiseJudge.section}.{name}" for name in PairwiseJudge.TRAINING]
    return graded_hash("judge", spec, *options, template=template_version(template))


def _require_room(spec: RunSpec, language_model: LanguageModel) -> None:
    """Raise RefusedError if the longest question to the judge, with its answer, exceeds the model's context."""
    options = spec.reward.of(PairwiseJudge)
    template = get_template(options.template_of(spec))
    # Completions are counted at their limit instead of being rendered.
    questions = (template.render(problem.problem, first="", second="") for problem in candidates(spec))
    longest = max(len(language_model.encode(question)) for question in questions)
    completion, answer = spec.rollout.max_completion_tokens, options.max_completion_tokens
    context = getattr(language_model.model.config, "max_position_embeddings", None)
    if context is not None and longest + 2 * completion + answer > context:
        raise RefusedError(
            "shelves.learned.question_exceeds_context",
            longest=longest,
            completion=completion,
            answer=answer,
            context=context,
        )


def _scorer(path: Path | None, spec: RunSpec, start: LanguageModel) -> CompletionScorer:
    from harness.shelves.learned.generative_judge import GenerativeJudge, JudgeScorer

    if path is not None:
        return JudgeScorer(GenerativeJudge.load(path, spec, start), read_report(path))
    asked = spec.reward.of(PairwiseJudge).asked
    if asked is None:
        raise ValueError("no judge was trained")
    return JudgeScorer(asked)


JUDGE = Stage(
    PairwiseJudge.stage,
    "training the judge",
    needed=partial(is_trained, part=PairwiseJudge),
    key=lambda spec: f"judge-{judge_hash(spec)[:16]}",
    make=_make,
    remark=_remark,
    require_data=partial(labelled_prompts, part=PairwiseJudge),
    require_model=_require_room,
    scorer=_scorer,
)
