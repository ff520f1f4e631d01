"""The reward model of `reward.parts.reward_model`: a Bradley-Terry model of the verdict.

It is trained on completions of the starting weights. Neither its data nor its noise depend on a cell's seed, so all
cells that start from these weights share it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.grading import Verdict
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.hashing import graded_hash
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.random_keys import SEED_OF_ALL_CELLS, permutation, random_key, uniform
from harness.records.files import read_json, write_folder, write_json
from harness.run.prompts import random_subset
from harness.run.stages import Stage, StageContext
from harness.shelves.learned.parts import LearnedReward, PairwiseJudge

if TYPE_CHECKING:
    from torch import Tensor

    from harness.engines.base import Engine
    from harness.models.language_model import LanguageModel
    from harness.run.learning.base import CompletionScorer
    from harness.sampling.conditions import Conditions
    from harness.sampling.store import SampleStore
    from harness.training.batch import Batch

REPORT_FILE = "report.json"
HELD_OUT_FRAC = 0.1
"""Share of the prompts that is kept apart to measure accuracy."""
MAX_PAIRS_PER_PROMPT = 4


def is_trained(spec: RunSpec, part: type[LearnedReward | PairwiseJudge]) -> bool:
    """Return whether a cell that draws completions waits for the model of a learned part."""
    trained = [one.stage for one in spec.reward.scored if one.held(spec) is not None]
    return part.stage in trained and spec.pairs.type != "dataset"


def labelled_prompts(spec: RunSpec, part: type[LearnedReward | PairwiseJudge]) -> Sequence[Problem]:
    """Return the training problems whose completions a learned part of the reward learns from.

    They are the same for all seeds, and for parts that want as many. Raises RefusedError if there are fewer than the
    part's `prompts`.
    """
    problems, wanted = get_task(spec.task.train).split("train").load(), spec.reward.of(part).prompts
    if wanted > len(problems):
        raise RefusedError(
            "shelves.learned.too_many_labelled_prompts",
            section=part.section,
            wanted=wanted,
            task=spec.task.train,
            n_problems=len(problems),
        )
    return random_subset(problems, wanted, random_key(SEED_OF_ALL_CELLS, "data", example="reward_model"))


def draw_graded(
    problems: Sequence[Problem],
    samples: int,
    conditions: Conditions,
    language_model: LanguageModel,
    engine: Engine,
    store: SampleStore,
    on_progress: Callable[[int], None] = lambda drawn: None,
) -> Batch:
    """Sample and grade `samples` completions of each problem, except samples in the store.

    The store must keep tokens, and keeps no log-probs. on_progress: receives after each chunk the number of problems
    done.
    """
    import torch

    from harness.engines.base import Completions
    from harness.rewards import Attempt
    from harness.sampling.evaluation import evaluate
    from harness.sampling.sampler import EngineSampler
    from harness.training.batch import Batch

    sampler = EngineSampler(language_model, engine, conditions.seed, conditions.stream)
    rows: list[Any] = evaluate(
        lambda: sampler, conditions, store, problems, samples, on_progress=lambda done, total, remark: on_progress(done)
    )
    tokens = [row["tokens"] for row in rows]
    # NaN log-probs mark that they are unknown, since the store keeps none.
    unknown = [[math.nan] * len(row) for row in tokens]
    drawn = Completions.of(tokens, unknown, [row["truncated"] for row in rows], language_model.pad_token_id)
    prompts = [language_model.encode(conditions.prompts.ask(problem)) for problem in problems]
    of_rows = [problem for problem in problems for _ in range(samples)]
    attempts = []
    for problem, row in zip(of_rows, rows, strict=True):
        verdict = Verdict(row["correct"], row["extracted"], row["reason"])
        attempts.append(
            Attempt(problem, row["sample"], row["text"], row["n_tokens"], row["truncated"], verdict, math.nan)
        )
    return replace(
        Batch.of_completions(prompts, drawn, 0, conditions.params.max_completion_tokens),
        problems=of_rows,
        attempts=attempts,
        correct=torch.tensor([row["correct"] for row in rows]),
    )


@dataclass(frozen=True)
class LabelledPairs:
    """Completions of the starting weights, and pairs of them: [P, 2] int64 row numbers, the better completion first."""

    drawn: Batch
    right: Tensor
    """Pairs of the prompts for training, by the grader."""
    labels: Tensor
    """The same pairs with label noise, used for training."""
    held_out: Tensor
    """Pairs of the other prompts, by the grader."""
    training_rows: int
    """The number of rows that belong to prompts for training; they come first."""

    @property
    def flipped(self) -> int:
        """The number of labels flipped by noise."""
        return int((self.labels != self.right).any(1).sum())

    def account(self, options: LearnedReward | PairwiseJudge) -> dict[str, object]:
        """Return the fields of a report that depend on the pairs alone."""
        return {
            "prompts": options.prompts,
            "samples_per_prompt": options.samples_per_prompt,
            "correct_frac": float(self.drawn.correct.float().mean()),
            "label_noise_rate": options.label_noise_rate,
            "flipped_pairs": self.flipped,
        }


def draw_labelled_pairs(
    context: StageContext, part: type[LearnedReward | PairwiseJudge], store: SampleStore, steps: int
) -> LabelledPairs:
    """Sample the pairs that a learned part of the reward learns from. Parts with equal options get the same pairs.

    steps: optimiser steps to follow, for progress. Samples stay in the store until the caller drops it. Raises
    RefusedError if no prompt has a right and a wrong completion; the store is dropped then.
    """
    from harness.sampling.conditions import Conditions

    spec, start = context.spec, context.start
    options, section = spec.reward.of(part), f"reward.{part.section}"
    problems = labelled_prompts(spec, part)
    drawn = draw_graded(
        problems,
        options.samples_per_prompt,
        Conditions.of_training(spec),
        start,
        context.engine(start),
        store,
        lambda prompts: context.tell_progress(prompts, len(problems) + steps),
    )
    # The last prompts are held out, so the first rows of the batch are those for training.
    for_training = len(problems) - int(HELD_OUT_FRAC * len(problems))
    right = verdict_pairs(drawn, range(for_training), options.seed)
    if len(right) == 0:
        store.drop()
        raise RefusedError(
            "shelves.learned.nothing_to_tell_apart",
            part=part.name,
            n_prompts=for_training,
            samples_per_prompt=options.samples_per_prompt,
            section=section,
        )
    return LabelledPairs(
        drawn,
        right,
        labels=with_label_noise(right, options.label_noise_rate, options.seed),
        held_out=verdict_pairs(drawn, range(for_training, len(problems)), options.seed),
        training_rows=for_training * options.samples_per_prompt,
    )


def write_model(folder: Path, save: Callable[[Path], None], report: dict[str, object]) -> None:
    """Write a model and the report of its training, whole or not at all. save: writes the weights into a folder."""

    def write(aside: Path) -> None:
        save(aside)
        write_json(aside / REPORT_FILE, report)

    write_folder(folder, write)


def mean_of_last(values: Sequence[float]) -> float | None:
    """Return the mean of the last tenth, or None without values."""
    return statistics.fmean(values[-max(1, len(values) // 10) :]) if values else None


def read_report(folder: Path) -> dict[str, Any]:
    """Read the training report of the reward model or judge in this folder.

    `correct_frac` is over the completions of the `prompts`. `pairs` counts pairs of a right and a wrong completion,
    `flipped_pairs` those with a flipped label. `train_loss` is over the last tenth of the steps, in nats per pair.
    `train_accuracy` and `held_out_accuracy` (None without `held_out_pairs`) are the share of pairs whose right
    completion has the higher score, whatever label noise made of them. Held-out pairs belong to the tenth of the
    prompts that was kept apart.
    """
    return dict(read_json(folder / REPORT_FILE))


def _make(folder: Path, context: StageContext) -> None:
    """Train the reward model and write it with its report.

    Progress counts prompts whose completions are sampled, then optimiser steps. Raises RefusedError if no prompt has a
    right and a wrong completion, or if the scores come out equal or not finite.
    """
    import torch

    from harness.shelves.learned.reward_model import train_reward_model

    spec, start = context.spec, context.start
    options = spec.reward.of(LearnedReward)
    store = context.samples(folder, keeps_tokens=True)
    pairs = draw_labelled_pairs(context, LearnedReward, store, options.steps)
    drawn, prompts = pairs.drawn, options.prompts
    losses: list[float] = []

    def on_step(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        context.tell_progress(prompts + step, prompts + options.steps)

    reward_model = train_reward_model(start, drawn.sequences, pairs.labels, options, on_step)
    # Only rows of training prompts set the scale, so held-out prompts stay unseen.
    reward_model.standardise(drawn.sequences.rows(torch.arange(pairs.training_rows)))
    scores = reward_model.scores(drawn.sequences)
    report = pairs.account(options) | {
        "pairs": len(pairs.right),
        "train_loss": mean_of_last(losses),
        "train_accuracy": _accuracy(scores, pairs.right),
        "held_out_pairs": len(pairs.held_out),
        "held_out_accuracy": _accuracy(scores, pairs.held_out),
    }
    write_model(folder, reward_model.save, report)
    store.drop()


def _remark(folder: Path) -> str:
    report = read_report(folder)
    right = report["held_out_accuracy"]
    return f"reward model of {report['pairs']} pairs, {report['flipped_pairs']} of them with the labels swapped: " + (
        "no pairs were held out" if right is None else f"ranks {right:.0%} of held-out pairs right"
    )


def verdict_pairs(drawn: Batch, problems: Iterable[int], seed: int) -> Tensor:
    """Return pairs [P, 2] int64 of rows: a right and a wrong completion of one problem, at most 4 per problem.

    problems: their numbers. A completion on which the grader reached no verdict is neither right nor wrong.
    """
    import torch

    pairs: list[tuple[int, int]] = []
    groups = drawn.by_group(range(len(drawn)))
    verdicts = [attempt.verdict for attempt in drawn.attempts]
    for number in problems:
        rows = groups[number]
        right = [row for row in rows if verdicts[row].correct]
        wrong = [row for row in rows if verdicts[row].reason in ("mismatch", "unparsed")]
        crossed = list(itertools.product(right, wrong))
        # Keyed by the problem's id, so that a prompt's pairs do not depend on the others.
        key = random_key(seed, "select", example=f"pairs/{drawn.problems[rows[0]].id}")
        pairs += [crossed[index] for index in permutation(len(crossed), key)[:MAX_PAIRS_PER_PROMPT]]
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2)


def with_label_noise(pairs: Tensor, rate: float, seed: int) -> Tensor:
    """Return the pairs [P, 2], each reversed with this probability.

    A higher rate also reverses the pairs that a lower one does.
    """
    import torch

    keys = [random_key(seed, "select", example="label", sample=pair) for pair in range(len(pairs))]
    # Each pair keeps its number whatever the rate, so the reversed pairs are nested.
    turned = torch.tensor([uniform(key) < rate for key in keys])
    return torch.where(turned[:, None], pairs.flip(1), pairs)


def _accuracy(scores: Tensor, pairs: Tensor) -> float | None:
    if len(pairs) == 0:
        return None
    better, worse = scores[pairs].T
    return float((better > worse).float().mean())


def reward_model_hash(spec: RunSpec) -> str:
    """Return the hash of a reward model. It is the same for all seeds, and for all uses of the model."""
    return graded_hash("reward_model", spec, "reward.reward_model.")


def _scorer(path: Path | None, spec: RunSpec, start: LanguageModel) -> CompletionScorer:
    from harness.shelves.learned.reward_model import RewardModel, RewardModelScorer

    if path is None:
        raise ValueError("no reward model was trained")
    return RewardModelScorer(RewardModel.load(path, start), read_report(path))


REWARD_MODEL = Stage(
    LearnedReward.stage,
    "training the reward model",
    needed=partial(is_trained, part=LearnedReward),
    key=lambda spec: f"reward-model-{reward_model_hash(spec)[:16]}",
    make=_make,
    remark=_remark,
    require_data=partial(labelled_prompts, part=LearnedReward),
    scorer=_scorer,
)
