"""Contradictions between sections of a run spec that are each valid.

Every message names the knobs with their values, the rule and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms import Objective, PreferenceObjective
from algorithms.kl import MAX_KL_ERROR
from algorithms.objective import GROUP_BASELINES
from evals.graders import get_grader, judge_of, runs_code
from evals.grading import OWN
from evals.grading.answer_form import ANSWER_FORMS
from evals.grading.asked_model import Asking
from evals.prompts import get_template
from evals.tasks import get_task
from harness.config.model_source import parse_source
from harness.config.reward import reward_problems
from harness.config.rollout import Slices
from harness.config.trainer import trainer_problems
from harness.errors import RefusedError
from harness.rewards import PARTS
from harness.rewards.base import nameable_parts
from harness.rewards.parts.correct import JudgeScore
from harness.rewards.parts.verifier_free import Jepo, VrCli

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec


MOST_COMPLETIONS = 1_000_000
"""The most completions of one step. All of them are in memory at the same time."""


def clashes(spec: RunSpec) -> Iterator[str]:
    """Yield all contradictions of a spec whose sections are each valid."""
    yield from _grading_problems(spec)
    yield from _rollout_problems(spec)
    yield from _teacher_problems(spec)
    yield from trainer_problems(spec)
    if spec.train.processes > 1:
        yield from _process_problems(spec)
    if isinstance(spec.objective, Objective):
        yield from _policy_gradient_problems(spec, spec.objective)
    else:
        yield from _preference_problems(spec)


def _grading_problems(spec: RunSpec) -> Iterator[str]:
    yield from _own_problems(spec)
    yield from _asked_judge_problems(spec)
    yield from _code_problems(spec)


def _graded(spec: RunSpec) -> dict[str, tuple[str | None, tuple[str, ...]]]:
    """Map each grader knob to its grader and the tasks that it grades."""
    return {
        "reward.grader": (spec.reward.grader, (spec.task.train,)),
        "eval.grader": (spec.eval.grader, spec.eval.tasks),
    }


def _own_problems(spec: RunSpec) -> Iterator[str]:
    for knob, (grader, tasks) in _graded(spec).items():
        without = [task for task in tasks if get_task(task).grader != OWN]
        if grader == OWN and without:
            yield (
                f"{knob}={OWN} with the task{'s' if len(without) > 1 else ''} {', '.join(without)}: only tasks "
                f"whose grader is {OWN} (`bench ls tasks`) have a comparison of their own. Set {knob} to math or "
                "numeric, which compare with the reference answers of all tasks"
            )


def _asked_judge_problems(spec: RunSpec) -> Iterator[str]:
    grader = spec.reward.grader
    scores = judge_of(grader) is not None and get_grader(str(grader)).gives_scores
    if JudgeScore.name in spec.reward.parts and not scores:
        yield (
            f"reward.parts.{JudgeScore.name} with reward.grader={grader}: this grader gives no numbers. "
            "Name a judge file with `right_from`, or leave the part out"
        )
    judges: dict[str, Asking | None] = {
        **{knob: judge_of(grader) for knob, (grader, _) in _graded(spec).items()},
        **spec.reward.asked_judges,
    }
    for knob, judge in judges.items():
        if judge is None:
            continue
        if judge.file.source is not None and spec.train.processes > 1:
            yield (
                f"{knob}={judge.name} with train.processes={spec.train.processes}: a judge with `source` runs in one "
                "process while the others wait. Serve its model at an `address`, or set train.processes to 1"
            )
        if knob == "reward.grader" and "answer" in judge.file.shown and get_task(spec.task.train).grader is None:
            yield (
                f"{knob}={judge.name} with task.train={spec.task.train}: the judge's text shows {{answer}}, and this "
                "task has none. Leave {answer} out of the text, or train on a task with answers"
            )


def _code_problems(spec: RunSpec) -> Iterator[str]:
    """Yield problems with tasks whose answers are programs, and with the permission to run these programs."""
    for knob, (grader, tasks) in _graded(spec).items():
        if grader is None or judge_of(grader) is not None:
            continue
        # A task that asks itself uses its own grader, whatever the knob says.
        asked = [task for task in tasks if not get_task(task).asks_itself]
        with_tests = [task for task in asked if runs_code(get_task(task).grader)]
        if runs_code(grader):
            wrong, have, instead = [task for task in asked if task not in with_tests], "have no unit tests", "numeric"
        else:
            wrong, have, instead = with_tests, "have unit tests, and no other rule reads programs", "unit_tests"
        if wrong:
            yield (
                f"{knob}={grader} with {', '.join(wrong)}: the problems of such tasks {have}. Set {knob} to {instead}, "
                "or leave these tasks out"
            )
    if not runs_code(spec.reward.grader):
        for name in (name for name, part in nameable_parts().items() if part.needs_code and name in spec.reward.parts):
            yield (
                f"reward.parts.{name} with reward.grader={spec.reward.grader}: this grader runs no tests. Train on a "
                "task with unit tests, or leave the part out"
            )
    if spec.runs_code and not spec.reward.allow_code:
        graders = " and ".join(knob for knob, (grader, _) in _graded(spec).items() if runs_code(grader))
        yield (
            f"{graders} run programs that the policy writes, on the machine of the cell, and reward.allow_code is "
            "false. Read in docs/howto/code.md what contains them, then set reward.allow_code: true; or take tasks "
            "without unit tests"
        )


def _rollout_problems(spec: RunSpec) -> Iterator[str]:
    """Yield problems with how completions are sampled in training, or with the pairs that replace them."""
    if spec.pairs.type == "dataset":
        pairs, updates = spec.pairs.pairs_per_step, spec.train.updates_per_rollout
        if pairs < updates:
            yield (
                f"pairs.pairs_per_step={pairs} with train.updates_per_rollout={updates}: an optimiser step needs a "
                f"pair. Raise pairs_per_step, or set updates_per_rollout to {pairs} or less"
            )
        # Nothing is sampled in training, so the rules below do not apply.
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
    if spec.task.retire_at is not None and spec.rollout.sampler in ("teacher", "given"):
        yield (
            f"task.retire_at={spec.task.retire_at:g} with rollout.sampler={spec.rollout.sampler}: prompts would be "
            "retired by completions that the policy did not write. Leave retire_at out, or let the policy sample"
        )
    yield from _mode_problems(spec)
    yield from _turn_problems(spec)
    yield from _off_policy_problems(spec)
    yield from _gold_problems(spec)
    for part in spec.reward.scored:
        yield from part.problems(spec)
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
    if get_task(spec.task.train).grader is None and judge_of(spec.reward.grader) is None:
        yield (
            f"task.train={spec.task.train} has no grader, and rollouts are ranked by their reward: name one in the "
            "task's file if its problems have answers, train on another task, or learn from a set of pairs (a "
            "preference algorithm with pairs: {type: dataset, data: ...})"
        )


def _mode_problems(spec: RunSpec) -> Iterator[str]:
    """Yield the settings that cannot be combined with prompts that ask for the answer at once."""
    asked = f"task.direct_frac={spec.task.direct_frac:g}"
    if not spec.task.direct_frac:
        return
    if spec.rollout.sampler == "given":
        yield (
            f"{asked} with rollout.sampler=given: the solutions that the problems come with show their steps. Learn "
            "both modes in a cold start (model.cold_start.direct_frac), or set task.direct_frac to 0"
        )
    if VrCli.name in spec.reward.parts:
        yield (
            f"{asked} with reward.parts.{VrCli.name}: it rewards the reasoning before the answer, and there would be "
            "none. Set task.direct_frac to 0, or leave the part out"
        )


def _turn_problems(spec: RunSpec) -> Iterator[str]:
    """Yield the settings that cannot be combined with completions of several turns."""
    rollout, task = spec.rollout, spec.task.train
    if get_task(task).environment is None:
        if rollout.max_turns is not None:
            yield (
                f"rollout.max_turns={rollout.max_turns} with task.train={task}: no environment answers this task, so a "
                "completion is one turn. Train on a task with an environment, e.g. guess, or leave max_turns out"
            )
        return
    answered = f"task.train={task}, which has an environment,"
    refused = {
        f"rollout.sampler={rollout.sampler}": rollout.sampler in ("teacher", "given"),
        f"teacher.type={spec.teacher.type}": spec.teacher.type != "none",
        f"rollout.partial.type={rollout.partial.type}": rollout.partial.type != "none",
        f"pairs.type={spec.pairs.type}": spec.pairs.type != "none",
    }
    for knob in (knob for knob, is_set in refused.items() if is_set):
        yield (
            f"{knob} with {answered}: completions of several turns are drawn by the policy, to their end, and learned "
            "from by their rewards alone. Leave the knob out, or train on a task without an environment"
        )
    for name in (name for name in spec.reward.parts if name in PARTS.names() and PARTS.find(name).reads_one_turn()):
        yield (
            f"reward.parts.{name} with {answered}: the model behind this part reads a completion without the "
            "environment's words. Leave the part out, or train on a task without an environment"
        )


def _off_policy_problems(spec: RunSpec) -> Iterator[str]:
    """Yield problems with sampling from weights older than the policy: `rollout.staleness_steps`, `rollout.partial`."""
    if staleness_steps := spec.rollout.staleness_steps:
        yield from _staleness_problems(spec, staleness_steps)
    if isinstance(spec.rollout.partial, Slices):
        yield from _slice_problems(spec, spec.rollout.partial.slice_tokens)


def _staleness_problems(spec: RunSpec, staleness_steps: int) -> Iterator[str]:
    train, given = spec.train, f"rollout.staleness_steps={staleness_steps}"
    # The first staleness_steps + 1 batches come from the starting weights; one more step makes the delay visible.
    if train.steps < staleness_steps + 2:
        yield (
            f"{given} with train.steps={train.steps}: all completions would be of the starting weights, as those of "
            f"the first {staleness_steps + 1} steps are. Lower rollout.staleness_steps, raise train.steps, or set "
            "rollout.sampler to initial"
        )
    if train.processes > 1 and train.sharding == "fully":
        yield (
            f"{given} with train.processes={train.processes} and train.sharding=fully: split weights can only sample "
            "from the current policy. Set staleness_steps to 0, or sharding to rows"
        )


def _slice_problems(spec: RunSpec, slice_tokens: int) -> Iterator[str]:
    rollout, objective, sliced = spec.rollout, spec.objective, "rollout.partial.type=slices"
    slices = rollout.max_completion_tokens // slice_tokens
    if slices > spec.train.steps:
        yield (
            f"rollout.partial.slice_tokens={slice_tokens} with rollout.max_completion_tokens="
            f"{rollout.max_completion_tokens} and train.steps={spec.train.steps}: a completion of {slices} slices "
            "would not end before training does. Raise slice_tokens, or train.steps"
        )
    if stop := (*rollout.stop, *get_template(spec.task.template).stop):
        yield (
            f"{sliced} with the stop strings {', '.join(map(repr, stop))} (rollout.stop, task.template="
            f"{spec.task.template}): a string that two slices share would not be seen. Leave rollout.stop out and take "
            "a template without stop strings, or set rollout.partial.type to none"
        )
    if isinstance(objective, Objective) and objective.zero_std == "refill":
        yield (
            f"{sliced} with objective.zero_std=refill: a step that draws other prompts would wait for all of their "
            "completions. Set objective.zero_std to drop, or rollout.partial.type to none"
        )
    if spec.teacher.type != "none":
        yield (
            f"{sliced} with teacher.type={spec.teacher.type}: a teacher is asked about completions of this step alone. "
            "Leave the teacher out, or set rollout.partial.type to none"
        )


def _gold_problems(spec: RunSpec) -> Iterator[str]:
    """Yield what reward parts that score the likelihood of the gold text require of task and objective."""
    reward, rollout, task = spec.reward, spec.rollout, get_task(spec.task.train)
    for part, scorer in reward.gold_parts.items():
        # The policy always scores the answer. A frozen generator may score the worked solution, which needs no answer
        # mark.
        of_answers = scorer == "policy" or reward.of(VrCli).gold == "answer"
        if of_answers and task.extract not in ANSWER_FORMS:
            yield (
                f"reward.parts.{part} with task.train={spec.task.train}: with extract={task.extract} no mark opens the "
                "answer, so reasoning and answer cannot be told apart. Train on a task with extract "
                f"{', '.join(ANSWER_FORMS)}, or leave the part out"
            )
    yield from _generator_problems(spec)
    if Jepo.name not in reward.parts:
        return
    options, objective = reward.of(Jepo), spec.objective
    if not isinstance(objective, Objective):
        yield (
            "reward.parts.jepo with a preference algorithm: JEPO's gradient is a policy gradient plus a supervised "
            "term. Choose a policy-gradient algorithm, e.g. rloo"
        )
    elif options.bound == "multi_sample" and (objective.baseline, objective.scale) != ("none", "none"):
        yield (
            f"reward.jepo.bound=multi_sample with objective.baseline={objective.baseline}, objective.scale="
            f"{objective.scale}: these rewards already are advantages, relative to the rest of the group. Set both to "
            "none, or the bound to one_sample"
        )
    if options.bound == "multi_sample" and rollout.samples_per_prompt == 1:
        yield (
            "rollout.samples_per_prompt=1 with reward.jepo.bound=multi_sample: a completion is compared with the rest "
            "of its group. Raise samples_per_prompt, or set the bound to one_sample and objective.baseline to none"
        )
    if rollout.sampler != "policy":
        yield (
            f"rollout.sampler={rollout.sampler} with reward.parts.jepo: the bound holds only for reasoning drawn by "
            "the policy itself. Set rollout.sampler to policy"
        )
    if reward.parts[Jepo.name] < 0 and options.supervised > 0:
        yield (
            f"reward.parts.jepo={reward.parts[Jepo.name]:g} with reward.jepo.supervised={options.supervised:g}: the "
            "loss would decrease without bound as gold answers become less likely. Give the part a weight above 0, or "
            "set supervised to 0"
        )


def _generator_problems(spec: RunSpec) -> Iterator[str]:
    """Yield problems with the frozen model that scores gold texts."""
    source = spec.reward.generator
    if source is None:
        return
    try:
        parsed = parse_source(source, "reward.vr_cli.generator")
    except RefusedError as error:
        yield str(error)
        return
    # After a cold start, training no longer starts from model.source, so naming it here is meaningful.
    is_start = str(parsed) == str(parse_source(spec.model.source)) and spec.model.cold_start.type == "none"
    if is_start:
        yield (f"reward.vr_cli.generator={source} is model.source, which is the generator by default. Leave it out")


def _teacher_problems(spec: RunSpec) -> Iterator[str]:
    """Yield problems with the teacher, and with solutions that only the teacher may see."""
    for knob, template in (("task.template", spec.task.template), ("eval.template", spec.eval.template)):
        if get_template(template).shows_solution:
            yield (
                f"{knob}={template}: this template shows the {{solution}}, which only a teacher may see. Set it as "
                "teacher.template, or name another template"
            )
    rollout, distils = spec.rollout, spec.distils
    if spec.teacher.type == "model" and spec.teacher.source is not None:
        try:
            parse_source(spec.teacher.source)
        except RefusedError as error:
            yield f"teacher.source takes what model.source takes. {error}"
    if rollout.sampler == "given" and rollout.samples_per_prompt > 1:
        yield (
            f"rollout.sampler=given with rollout.samples_per_prompt={rollout.samples_per_prompt}: a problem has one "
            "given solution, so all its completions would be equal. Set samples_per_prompt to 1, and raise "
            "rollout.prompts_per_step instead"
        )
    if distils == "reward" and rollout.sampler != "policy":
        yield (
            f"rollout.sampler={rollout.sampler} with objective.distill.where=reward: the log-ratio to the teacher is a "
            "reward for the policy's own tokens. Set rollout.sampler to policy, or objective.distill.where to loss"
        )
    readers = [f"objective.distill.where={distils}"] if distils != "none" else []
    readers += ["rollout.sampler=teacher"] if rollout.sampler == "teacher" else []
    if spec.teacher.type == "none":
        for reader in readers:
            yield f"{reader} without a teacher: name one, e.g. teacher: {{type: model, source: hf:<id>@<commit>}}"
        if spec.budget.teacher_tokens is not None:
            yield f"budget.teacher_tokens={spec.budget.teacher_tokens} without a teacher: name one, or leave it out"
    # A verifier's reward, another prompt or other weights would each give a non-zero gradient.
    elif spec.start_teaches and spec.teacher_template == spec.task.template and _teacher_alone(spec.objective):
        yield (
            "teacher.type=model without teacher.source, teacher.cold_start and teacher.template: the teacher is the "
            "starting student under the same prompt, and the objective uses no rewards, so every gradient is 0. Set "
            "one of these knobs, e.g. a template that shows the teacher the {solution}"
        )
    # Nothing is trained if a checkpoint is evaluated, so an unused teacher does no harm.
    elif not readers and not spec.checkpoint:
        yield (
            "teacher.type=model, but nothing uses the teacher: set objective.distill.where to loss or reward "
            "(algorithms kd, gkd, opd), or rollout.sampler to teacher, or leave the teacher out"
        )


def _teacher_alone(objective: Objective | PreferenceObjective) -> bool:
    """Return whether the student learns only from the teacher's distribution."""
    if not isinstance(objective, Objective) or objective.distill.where == "none":
        return False
    return objective.distill.verifier_coef == 0 and objective.rule.reads_advantage


def _process_problems(spec: RunSpec) -> Iterator[str]:
    """Yield the settings that do not work with several processes per cell."""
    train, objective = spec.train, spec.objective
    together = f"train.processes={train.processes}"
    if ":" in train.device:
        yield (
            f"{together} with train.device={train.device}: each process takes a GPU of its own. Set train.device to "
            "cuda, or processes to 1"
        )
    if isinstance(objective, Objective) and objective.token_weight.depends_on_split:
        yield (
            f"{together} with objective.aggregation={objective.aggregation}: the objective would depend on how the "
            "rows are split. Choose another aggregation, or set processes to 1"
        )
    if train.sharding == "rows":
        return
    fully = f"{together} and train.sharding=fully"
    if spec.rollout.sampler != "policy":
        yield (
            f"{fully} with rollout.sampler={spec.rollout.sampler}: split weights can only sample from the current "
            "policy. Set rollout.sampler to policy, or sharding to rows"
        )
    by_one = {
        "a cold start": spec.model.cold_start.type != "none",
        "a reward from the gold text's likelihood": bool(spec.reward.gold_parts),
        **{part.noun: True for part in spec.reward.scored},
        "a cold start of the teacher": spec.teacher.type == "model" and spec.teacher.cold_start.type != "none",
    }
    for what in (what for what, is_made in by_one.items() if is_made):
        yield (
            f"{fully} with {what}: one process does that on one device, where a model that must be split does not "
            f"fit. Leave {what} out, or set sharding to rows"
        )


def _policy_gradient_problems(spec: RunSpec, objective: Objective) -> Iterator[str]:
    """Yield problems with an objective that is trained on rewards."""
    if spec.pairs.type != "none":
        yield (
            f"pairs.type={spec.pairs.type} with a policy-gradient algorithm, which learns from rewards: leave `pairs` "
            "out, or choose a preference algorithm (`bench ls algorithms`)"
        )
        return
    if spec.rollout.samples_per_prompt == 1:
        yield from _single_sample_problems(objective)
    elif objective.pass_k >= spec.rollout.samples_per_prompt:
        yield (
            f"objective.pass_k={objective.pass_k} with rollout.samples_per_prompt={spec.rollout.samples_per_prompt}: "
            "all sets of a group would be one, and every advantage 0. Lower pass_k, or raise samples_per_prompt"
        )
    if spec.rollout.sampler != "policy" and objective.rule.ratios:
        yield (
            f"rollout.sampler={spec.rollout.sampler} with objective.rule.type={objective.rule.type}: the importance "
            "ratio is to the policy of the step, which did not draw these completions. Set objective.rule.type to "
            "policy_gradient, or rollout.sampler to policy"
        )
    kl = objective.kl
    completions = spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt
    # beta is multiplied by 1 + error x completions / horizon, where |error| <= MAX_KL_ERROR; see `algorithms.kl`.
    if kl.where != "none" and kl.control == "adaptive" and MAX_KL_ERROR * completions >= kl.horizon_sequences:
        yield (
            f"objective.kl.horizon_sequences={kl.horizon_sequences} with {completions} completions per step "
            "(rollout.prompts_per_step x rollout.samples_per_prompt): one step below the target could turn beta "
            f"negative. Set horizon_sequences above {MAX_KL_ERROR * completions:g}"
        )


def _single_sample_problems(objective: Objective) -> Iterator[str]:
    """Yield the settings that need groups of several completions."""
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
    """Yield problems with an objective that is trained on pairs."""
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
