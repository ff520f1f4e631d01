"""The plan of a sweep: resolved specs, cells with their hashes, the result of the gate, warnings, cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

from algorithms import Objective
from evals.tasks import get_task
from harness.config.engine import ENGINES
from harness.config.knobs import active, unread
from harness.config.model import Lora
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec
from harness.config.trainer import BENCH, OutsideTrainer
from harness.errors import Faults, GateError, RefusedError, few
from harness.executors.slots import gpu_here
from harness.plan.designs import leave_one_out_faults
from harness.plan.filing import PlannedCell, records_of
from harness.plan.gate import GateReport, Noop, check_gate, find_noops, first_of
from harness.plan.memory import MemoryEstimate, estimate_memory
from harness.plan.request import SweepRequest, metric_faults, read_request, resolved_arms
from harness.plan.sweep_file import SweepFile
from harness.records import CellRecord
from harness.records.scores import METRIC_PREFIX

RECOMMENDED_SEEDS = 6
"""With fewer seeds, a two-sided sign-flip test cannot reach p < .05."""


@dataclass(frozen=True)
class PlannedCost:
    """Upper bounds on the cost of all cells, and an estimate of a cell's memory."""

    cells: int
    generated_tokens_at_most: int
    scored_tokens_at_most: int
    """Tokens that models process again to score the likelihood of gold texts. Prompts and gold texts are not counted.
    """
    teacher_tokens_at_most: int
    eval_samples_at_most: int | None
    """None if all problems of a task are evaluated, because their number is not known before the data are loaded."""
    memory: MemoryEstimate | None
    """The estimate for one cell of `largest_arm`; None if the size of every model is unknown."""
    largest_arm: str | None
    """The arm that needs the most memory."""

    def as_json(self) -> dict[str, object]:
        bounds = {name: value for name, value in asdict(self).items() if name not in ("memory", "largest_arm")}
        memory = None if self.memory is None else {"arm": self.largest_arm, **self.memory.as_json()}
        return {**bounds, "memory": memory}


@dataclass(frozen=True)
class Plan:
    """The work of one `bench run`, before it begins."""

    request: SweepRequest
    arms: dict[str, RunSpec]
    """Maps each arm to its resolved spec at the first seed. For an arm that is still to be tuned, this is its untuned
    spec.
    """
    cells: list[PlannedCell]
    gate: GateReport
    noops: list[Noop]
    warnings: list[str]

    @property
    def sweep(self) -> SweepFile:
        return self.request.sweep

    @property
    def profile(self) -> str:
        return self.request.profile

    @property
    def baseline(self) -> str:
        """The arm with which the others are compared.

        It is the baseline in the file. If the file names none or --arms leaves it out, it is the first arm.
        """
        baseline = self.sweep.compare.baseline
        return baseline if baseline in self.arms else next(iter(self.arms))

    @property
    def grid(self) -> dict[str, dict[str, object]]:
        """In a factorial, maps each arm to its value of every factor; otherwise empty."""
        return {arm: self.sweep.all_arms[arm] for arm in self.arms} if self.sweep.grid else {}

    @property
    def first_spec(self) -> RunSpec:
        return next(iter(self.arms.values()))

    @property
    def metric(self) -> str:
        """The compared metric in its full form, `eval.final.<task>.<metric>`."""
        return f"{METRIC_PREFIX}{self.metric_task}.{self.metric_name}"

    @property
    def metric_task(self) -> str:
        """The task of the compared metric. It is the first evaluation task if the file names none."""
        return self._given_metric[0] or self.task_names[0]

    @property
    def metric_task_as_given(self) -> str:
        """The same task as named in the spec, for loading it. A user's own task is named by its file there."""
        return self.first_spec.eval.tasks[self.task_names.index(self.metric_task)]

    @property
    def task_names(self) -> list[str]:
        """The names of the evaluation tasks in records and metrics. A user's own task is named after its file."""
        return [get_task(task).name for task in self.first_spec.eval.tasks]

    @property
    def metric_name(self) -> str:
        """The name of the compared metric without its task, e.g. `pass@1`."""
        return self._given_metric[1]

    @property
    def given_metric(self) -> str:
        """The compared metric as named in the file. Trials of a search are compared by its first objective."""
        search = self.sweep.search
        return self.sweep.compare.metric if search is None else search.objectives[0]

    @property
    def _given_metric(self) -> tuple[str, str]:
        task, _, name = self.given_metric.removeprefix(METRIC_PREFIX).rpartition(".")
        return task, name

    @property
    def margin_pp(self) -> float:
        """The smallest difference that matters, in percentage points, from the file or otherwise from the task."""
        given = self.sweep.compare.margin_pp
        if given is not None:
            return given
        return get_task(self.metric_task_as_given).margin_pp

    @property
    def to_tune(self) -> list[str]:
        """The arms that must still be tuned, so that their settings are not known yet."""
        return [] if self.sweep.tune is None else [arm for arm in self.arms if arm not in self.request.tuned]

    def folder(self, home: Path) -> Path:
        return home / self.sweep.name

    def record(self, cell: PlannedCell, home: Path) -> CellRecord:
        """Return a cell's record, whether or not the cell exists yet."""
        return cell.record(self.folder(home) / "cells")

    def records(self, home: Path) -> list[CellRecord]:
        """Return the records of all cells, in the order of `cells`."""
        return records_of(self.cells, self.folder(home) / "cells")

    def require_answerable(self) -> None:
        """Raise GateError if arms differ in undeclared knobs, or only in knobs that have no effect."""
        if not self.gate.ok:
            raise GateError(self.gate.message())
        refused = [noop for noop in self.noops if noop.refused]
        if refused and not self.sweep.allow_noop:
            messages = first_of([noop.message() for noop in refused])
            raise GateError("plan.no_arms_can_act", arms="\n".join(f"  {message}" for message in messages))

    def cost(self) -> PlannedCost:
        """Return upper bounds on the cost of all cells, and an estimate of memory."""
        tokens, scored, taught, samples = 0, 0, 0, 0
        all_problems = any(spec.eval.problems is None for spec in self.arms.values())
        for cell in self.cells:
            spec = cell.spec
            if _draws_in_training(spec):
                drawn = _at_most(spec.train.steps, _most_tokens_a_step(spec), spec.budget.tokens)
                tokens += drawn
                scored += drawn * (len(spec.reward.gold_parts) + spec.reward.has_answer_term)
                taught += _most_scored(spec)
            along = spec.training_steps // spec.eval.every if spec.eval.every else 0
            # Greedy decoding takes one sample per problem, whatever the spec says.
            each = 1 + along if spec.eval.is_greedy else spec.eval.samples + along * spec.eval.curve_samples
            if (wanted := spec.eval.problems) is not None:
                samples += each * sum(get_task(name).n_evaluated(wanted) or 0 for name in spec.eval.tasks)
        estimates = {arm: estimate_memory(spec, cuda=False) for arm, spec in self.arms.items()}
        known = {arm: estimate for arm, estimate in estimates.items() if estimate is not None}
        largest = max(known, key=lambda arm: known[arm].total_bytes, default=None)
        memory = None if largest is None else known[largest]
        evaluated = None if all_problems else samples
        return PlannedCost(len(self.cells), tokens, scored, taught, evaluated, memory, largest)


def _at_most(steps: int, a_step: int, budget: int | None) -> int:
    """Return an upper bound on the tokens of this many steps, or until the budget is used up."""
    # The step that uses up the budget is completed, so it may exceed the budget by the tokens of a step.
    return steps * a_step if budget is None else min(steps * a_step, budget + a_step)


def _most_tokens_a_step(spec: RunSpec) -> int:
    """Return an upper bound on the tokens that a step generates."""
    rollout, objective = spec.rollout, spec.objective
    refills = isinstance(objective, Objective) and objective.zero_std == "refill"
    rounds = 1 + (spec.policy_gradient.refill_max_rounds if refills else 0)
    # The task's own solutions cost no generated tokens, so only the policy's share counts.
    drawn = round(rollout.policy_frac * rollout.prompts_per_step) if rollout.sampler == "given" else None
    prompts = rollout.prompts_per_step if drawn is None else drawn
    return rounds * prompts * rollout.samples_per_prompt * rollout.max_completion_tokens


def _most_scored(spec: RunSpec) -> int:
    """Return an upper bound on the completion tokens that a cell's teacher scores.

    If the teacher is part of the loss, each epoch counts.
    """
    if spec.distils == "none":
        return 0
    times = spec.train.epochs if spec.distils == "loss" else 1
    # The teacher scores given solutions too, so all completions count as if the policy had sampled them.
    all_drawn = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"sampler": "policy"})})
    a_step = _most_tokens_a_step(all_drawn)
    generated = spec.budget.tokens if spec.rollout.sampler != "given" else None
    return min(
        times * _at_most(spec.train.steps, a_step, generated),
        _at_most(spec.train.steps, times * a_step, spec.budget.teacher_tokens),
    )


def make_plan(
    given: str,
    profile: str | None = None,
    settings: Sequence[str] = (),
    seeds: int | None = None,
    arms: Sequence[str] = (),
    on_gpu: Callable[[], bool] = gpu_here,
) -> Plan:
    """Plan a sweep file (path or shipped name) or a folder of records, with the options of the command line.

    on_gpu: as in `read_request`. Raises RefusedError for any fault in the files or options. If the gate refuses the
    arms, this is recorded in the plan.
    """
    request = read_request(given, profile, settings, seeds, arms, on_gpu)
    if request.sweep.search is not None:
        raise RefusedError("plan.search_has_no_arms", given=given)
    return plan_arms(request)


def plan_arms(request: SweepRequest) -> Plan:
    """Plan a sweep whose arms are listed in its file. Raises RefusedError with the faults of all arms."""
    sweep, faults = request.sweep, Faults()
    faults.lines += request.faults_of_an_evaluation()
    faults.refuse()
    specs = resolved_arms(request.arms_layers, request.seed_list, faults, request.on_gpu, request.checkpoint)
    cells: list[PlannedCell] = []
    for arm, by_seed in specs.items():
        with faults:
            cells += PlannedCell.of_arm(arm, by_seed)
    firsts = {arm: next(iter(by_seed.values())) for arm, by_seed in specs.items()}
    # If a checkpoint is evaluated, arms may differ in their evaluation, so the metric is checked for each arm.
    metric, trains = sweep.compare.metric, request.checkpoint is None
    of_metric = [fault for spec in firsts.values() for fault in metric_faults(metric, spec.eval, trains)]
    faults.lines += [f"{request.path}: {fault}" for fault in dict.fromkeys(of_metric)]
    faults.refuse()
    # Whether the arms differ is checked without their tuned values, which would count as a difference.
    untuned = firsts
    if request.tuned:
        before = resolved_arms(replace(request, tuned={}).arms_layers, request.seed_list[:1], faults, request.on_gpu)
        untuned = {arm: next(iter(by_seed.values())) for arm, by_seed in before.items()}
    of_design = leave_one_out_faults(untuned, sweep.leave_one_out, sweep.co_changes)
    faults.lines += [f"{request.path}: {fault}" for fault in of_design]
    faults.refuse()
    noops = find_noops(untuned)
    return Plan(
        request=request,
        arms=firsts,
        cells=cells,
        gate=check_gate(firsts, [*sweep.under_test, *sweep.tuned_knobs], sweep.co_changes),
        noops=noops,
        warnings=_warnings(request, untuned, noops),
    )


def _warnings(request: SweepRequest, specs: Mapping[str, RunSpec], noops: Sequence[Noop]) -> list[str]:
    """Return warnings about the plan, one sentence each. specs: the arms before their tuning."""
    sweep, chosen = request.sweep, list(specs)
    # Pairs that are refused are reported by `require_answerable`, unless the file allows them.
    warnings = first_of([noop.message() for noop in noops if not noop.refused or sweep.allow_noop])
    if sweep.under_test:
        knobs = {arm: active(spec) for arm, spec in specs.items()}
        same = [(a, b) for (a, one), (b, other) in combinations(knobs.items(), 2) if one == other]
        warnings += first_of([f"arms {a} and {b} are the same: there is nothing to compare." for a, b in same])
    count = len(request.seed_list)
    if count < RECOMMENDED_SEEDS and request.checkpoint is None:
        warnings.append(
            f"{count} seed{'s' if count > 1 else ''}: a sign-flip test cannot reach p < .05 below {RECOMMENDED_SEEDS} "
            + ("seeds; below 3 there is no test at all." if count < 3 else "seeds.")
        )
    uncorrected = {arm: spec for arm, spec in specs.items() if _samples_uncorrected(spec)}
    # Only an engine with its own copy of the weights rounds differently.
    for engine in (engine for engine in ENGINES.all().values() if engine.holds_copy):
        if arms := [arm for arm, spec in uncorrected.items() if spec.rollout.engine == engine.name]:
            warnings.append(
                f"arms {', '.join(arms)}: {engine.title} rounds in another way than the trainer, and "
                "objective.sampler_correction.type is none. mismatch/* measures the difference; token_truncate "
                "corrects it."
            )
    adapted = {arm: spec.model.dtype for arm, spec in uncorrected.items() if isinstance(spec.model.lora, Lora)}
    rounded = [arm for arm, dtype in adapted.items() if dtype == "bfloat16"]
    if rounded:
        warnings.append(
            f"arms {', '.join(rounded)}: completions are drawn with adapters merged into bfloat16 weights, which "
            "rounds small ones away, and trained with them apart. mismatch/* measures the difference; "
            "objective.sampler_correction.type=token_truncate corrects it, model.dtype=float32 avoids it."
        )
    in_another_dtype = [arm for arm, spec in uncorrected.items() if spec.rollout.dtype != "trainer"]
    if in_another_dtype:
        warnings.append(
            f"arms {', '.join(in_another_dtype)}: completions are drawn in another dtype (rollout.dtype) than they are "
            "trained on. mismatch/* measures the difference; objective.sampler_correction.type=token_truncate corrects "
            "it."
        )
    sources: dict[str, set[str | None]] = {
        "model.source": {spec.model.source for spec in specs.values() if spec.checkpoint_folder is None},
        "teacher.source": {spec.teacher.source for spec in specs.values() if spec.teacher.type == "model"},
    }
    for knob, named in sources.items():
        moving = sorted(source for source in named if source and parse_source(source).moves)
        if not moving:
            continue
        warnings.append(
            f"{knob} {', '.join(moving)} is not pinned to a commit: a later cell may start from other weights. "
            "Write hf:<id>@<commit>, 40 hexadecimal digits."
        )
    # The judges are collected by name, because several arms may ask the same judge.
    served = {judge.name: judge.file for spec in specs.values() for judge in spec.judges if judge.file.address}
    for name, file in served.items():
        keyless = file.api_key_env is not None and not os.environ.get(file.api_key_env)
        warnings.append(
            f"the judge {name} is asked at {file.address}: the estimate does not include its time and price."
            + (f" The environment variable {file.api_key_env} for its key is not set here." if keyless else "")
        )
    evaluation = next(iter(specs.values())).eval
    choosing = [task.name for task in map(get_task, evaluation.tasks) if task.gives_choices]
    if choosing and max(evaluation.samples, evaluation.curve_samples) > 1:
        warnings.append(
            f"{', '.join(choosing)}: eval.samples does not count here. The most likely choice is always the same, so "
            "a problem has one sample."
        )
    for task in map(get_task, evaluation.tasks) if evaluation.problems is not None else ():
        if (n := task.n_evaluated(evaluation.problems)) != evaluation.problems:
            warnings.append(
                f"{task.name}: eval.problems is {evaluation.problems}, but there are {n}; all of them are used."
            )
    greedy = [arm for arm, spec in specs.items() if spec.eval.is_greedy and spec.eval.samples > 1]
    if greedy:
        warnings.append(
            f"{'arm' if len(greedy) == 1 else 'arms'} {', '.join(greedy)}: eval.samples does not count at "
            "eval.temperature 0. All samples of a problem would be equal, so one is drawn."
        )
    outside: dict[str, list[str]] = {}
    for arm, spec in specs.items():
        if (words := _outside_words(spec)) is not None:
            outside.setdefault(words, []).append(arm)
    warnings += [f"{'arm' if len(arms) == 1 else 'arms'} {few(arms)}: {words}" for words, arms in outside.items()]
    baseline = sweep.compare.baseline
    if baseline is not None and baseline not in chosen:
        warnings.append(f"the baseline {baseline} is not among --arms; {chosen[0]} takes its place.")
    return warnings


def _draws_in_training(spec: RunSpec) -> bool:
    """Return whether bench itself samples completions in training."""
    return spec.checkpoint is None and spec.pairs.type != "dataset" and spec.trainer.type == BENCH


def _outside_words(spec: RunSpec) -> str | None:
    """Return a sentence on which settings affect an arm that an outside program trains, or None for other arms."""
    trainer = spec.trainer
    if not isinstance(trainer, OutsideTrainer) or spec.checkpoint:
        return None
    *read, last = "the starting weights", "the prompts", "seed", "budget", "trainer.args", *trainer.knobs_read()
    ignored = dict.fromkeys(knob.partition(".")[0] for knob in unread(spec))
    return (
        f"trained by a program outside of bench (trainer.type={trainer.type}), which gets {', '.join(read)} and "
        f"{last}. No other knob of {', '.join(ignored)} acts on it. It shares no sampling noise with other arms, and "
        "resumes only as exactly as the program does. The estimates leave out its training."
    )


def _samples_uncorrected(spec: RunSpec) -> bool:
    """Return whether an arm samples in training without correcting the mismatch between sampler and trainer."""
    # Preference objectives have no ratio that could be corrected.
    corrects = not isinstance(spec.objective, Objective) or spec.objective.sampler_correction.type != "none"
    return _draws_in_training(spec) and not corrects
