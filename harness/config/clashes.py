"""What the sections of a run spec cannot know by themselves: which of their settings have no meaning together.

Every problem names the knobs with their values, the rule and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms import Objective
from algorithms.kl import MAX_KL_ERROR
from algorithms.objective import GROUP_BASELINES
from evals.grading import OWN
from evals.tasks import GYM_TASKS, get_task
from harness.config.reward import reward_problems

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec


MOST_COMPLETIONS = 1_000_000
"""The most of one step, which are in memory together."""


def clashes(spec: RunSpec) -> Iterator[str]:
    """All problems of a spec whose sections are valid each by itself."""
    yield from _grader_problems(spec)
    yield from _rollout_problems(spec)
    if spec.train.processes > 1:
        yield from _process_problems(spec)
    if isinstance(spec.objective, Objective):
        yield from _policy_gradient_problems(spec, spec.objective)
    else:
        yield from _preference_problems(spec)


def _grader_problems(spec: RunSpec) -> Iterator[str]:
    graders = {
        "reward.grader": (spec.reward.grader, (spec.task.train,)),
        "eval.grader": (spec.eval.grader, spec.eval.tasks),
    }
    for knob, (grader, tasks) in graders.items():
        without = [task for task in tasks if get_task(task).grader != OWN]
        if grader == OWN and without:
            yield (
                f"{knob}={OWN} with the task{'s' if len(without) > 1 else ''} {', '.join(without)}: only tasks "
                f"{GYM_TASKS} have a comparison of their own. Set {knob} to math or numeric, which compare with the "
                "reference answers of all tasks"
            )


def _rollout_problems(spec: RunSpec) -> Iterator[str]:
    if spec.pairs.type == "dataset":
        pairs, updates = spec.pairs.pairs_per_step, spec.train.updates_per_rollout
        if pairs < updates:
            yield (
                f"pairs.pairs_per_step={pairs} with train.updates_per_rollout={updates}: an optimiser step needs a "
                f"pair. Raise pairs_per_step, or set updates_per_rollout to {pairs} or less"
            )
        return
    prompts, updates = spec.rollout.prompts_per_step, spec.train.updates_per_rollout
    completions = prompts * spec.rollout.samples_per_prompt
    if completions > MOST_COMPLETIONS:
        yield (
            f"rollout.prompts_per_step={prompts} with rollout.samples_per_prompt={spec.rollout.samples_per_prompt}: "
            f"a step would draw {completions:,} completions, and the most is {MOST_COMPLETIONS:,}. Lower one of them"
        )
    if prompts % updates:
        yield (
            f"rollout.prompts_per_step={prompts} with train.updates_per_rollout={updates}: mini-batches hold whole "
            f"groups and equally many. Choose updates_per_rollout among the divisors of {prompts}"
        )
    first = spec.eval.tasks[0]
    if spec.reward.needs_reward_model and get_task(first).gives_choices:
        yield (
            f"eval.tasks begins with {first} and a reward model is trained, whose best of n is taken of completions on "
            "that task: it has choices only. Name a task first whose answers are written"
        )
    credit = spec.objective.credit if isinstance(spec.objective, Objective) else "completion"
    yield from reward_problems(spec.reward, credit, spec.task.train)
    staged = spec.rollout.staged
    if staged.type == "at_step" and staged.step > spec.train.steps:
        yield (
            f"rollout.staged.step={staged.step} with train.steps={spec.train.steps}: the limit never rises. Lower "
            "rollout.staged.step, or raise train.steps"
        )
    if spec.rollout.sampler == "round" and spec.rollout.round_steps >= spec.train.steps:
        yield (
            f"rollout.round_steps={spec.rollout.round_steps} with train.steps={spec.train.steps}: there is no second "
            "round, so all completions are of the starting weights. Lower rollout.round_steps, or set rollout.sampler "
            "to initial"
        )
    if get_task(spec.task.train).grader is None:
        yield (
            f"task.train={spec.task.train} has no grader, and rollouts are ranked by their reward: name one in the "
            "task's file if its problems have answers, train on another task, or learn from a set of pairs (a "
            "preference algorithm with pairs: {type: dataset, data: ...})"
        )


def _process_problems(spec: RunSpec) -> Iterator[str]:
    train, objective = spec.train, spec.objective
    together = f"train.processes={train.processes}"
    if ":" in train.device:
        yield (
            f"{together} with train.device={train.device}: each process takes a GPU of its own. Set train.device to "
            "cuda, or processes to 1"
        )
    if isinstance(objective, Objective) and objective.aggregation == "micro_token_mean":
        yield (
            f"{together} with objective.aggregation=micro_token_mean: the objective would depend on how the rows are "
            "split. Choose another aggregation, or set processes to 1"
        )
    if train.sharding == "rows":
        return
    fully = f"{together} and train.sharding=fully"
    if spec.rollout.sampler != "policy":
        yield (
            f"{fully} with rollout.sampler={spec.rollout.sampler}: split weights can only sample from the current "
            "policy. Set rollout.sampler to policy, or sharding to rows"
        )
    by_one = {"a cold start": spec.model.cold_start.type != "none", "a reward model": spec.reward.needs_reward_model}
    for what in (what for what, is_made in by_one.items() if is_made):
        yield (
            f"{fully} with {what}: one process trains that on one device, where a model that must be split does not "
            f"fit. Leave {what} out, or set sharding to rows"
        )


def _policy_gradient_problems(spec: RunSpec, objective: Objective) -> Iterator[str]:
    if spec.pairs.type != "none":
        yield (
            f"pairs.type={spec.pairs.type} with a policy-gradient algorithm, which learns from rewards: leave `pairs` "
            "out, or choose a preference algorithm (`bench ls algorithms`)"
        )
        return
    if spec.rollout.samples_per_prompt == 1:
        yield from _single_sample_problems(objective)
    if spec.rollout.sampler != "policy" and objective.rule.ratios:
        yield (
            f"rollout.sampler={spec.rollout.sampler} with objective.rule.type={objective.rule.type}: the importance "
            "ratio is to the policy of the step, which did not draw these completions. Set objective.rule.type to "
            "policy_gradient, or rollout.sampler to policy"
        )
    kl = objective.kl
    completions = spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt
    if kl.where != "none" and kl.control == "adaptive" and MAX_KL_ERROR * completions >= kl.horizon_sequences:
        yield (
            f"objective.kl.horizon_sequences={kl.horizon_sequences} with {completions} completions per step "
            "(rollout.prompts_per_step x rollout.samples_per_prompt): one step below the target could turn beta "
            f"negative. Set horizon_sequences above {MAX_KL_ERROR * completions:g}"
        )


def _single_sample_problems(objective: Objective) -> Iterator[str]:
    if objective.baseline in (*GROUP_BASELINES, "random_peer"):
        yield (
            f"rollout.samples_per_prompt=1 with objective.baseline={objective.baseline}: a completion is compared with "
            "others of its prompt, so every advantage would be 0. Raise samples_per_prompt, or set "
            "objective.baseline to batch_mean, critic or none"
        )
    if objective.zero_std != "keep":
        yield (
            f"rollout.samples_per_prompt=1 with objective.zero_std={objective.zero_std}: the rewards of a group of one "
            "are all equal, so nothing would be trained on. Raise samples_per_prompt, or set objective.zero_std to keep"
        )


def _preference_problems(spec: RunSpec) -> Iterator[str]:
    if spec.pairs.type == "none":
        yield (
            "pairs.type=none with a preference algorithm, which learns from pairs: set pairs.type to policy (pairs are "
            "made of the policy's own completions) or to dataset"
        )
    elif spec.pairs.type == "policy" and spec.rollout.samples_per_prompt == 1:
        yield (
            "rollout.samples_per_prompt=1 with pairs.type=policy: a pair is made of two completions of one prompt. "
            "Raise samples_per_prompt"
        )
    if spec.preference.reference == "round_start" and (spec.pairs.type != "policy" or spec.rollout.sampler != "round"):
        yield (
            f"objective.reference=round_start with pairs.type={spec.pairs.type}, rollout.sampler="
            f"{spec.rollout.sampler}: there are no rounds. Set pairs.type to policy and rollout.sampler to round, or "
            "objective.reference to initial"
        )
