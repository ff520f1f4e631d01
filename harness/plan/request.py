"""A request for a sweep: its file with the options of the command line, and a check for all their faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from evals.metrics import metrics_for
from evals.tasks import get_task
from harness.config.knobs import acts_of, knob_at
from harness.config.machine import resolved_for_machine
from harness.config.resolve import Layer, faults_of_incomplete, resolve
from harness.config.run_spec import RunSpec
from harness.config.task import EvalSpec
from harness.errors import Faults, RefusedError, UnknownNameError
from harness.executors.slots import gpu_here
from harness.plan.gate import covered
from harness.plan.profile import find_profile, profile_layer
from harness.plan.subject import BARE_MODEL, with_its_model
from harness.plan.sweep_file import (
    KEPT,
    KEPT_PROFILE,
    MOST_CELLS,
    SweepFile,
    parse_settings,
    read_what_can_be_read,
)
from harness.records import read_sweep
from harness.records.looks import first_seeds
from harness.records.scores import METRIC_PREFIX
from harness.records.sweep import TunedArm
from harness.settings import dotted
from harness.settings.faults import Fault, FaultyError

ASKED_OF_A_CHECKPOINT = (
    "eval",
    "rollout.engine",
    "rollout.dtype",
    "model.dtype",
    "model.head_dtype",
    "model.chat_template",
)
"""The knobs in which arms over one checkpoint may differ, as dotted prefixes: decoding, prompts, grader, engine and
precision.
"""


@dataclass(frozen=True)
class SweepRequest:
    """A sweep file with the options of the command line."""

    sweep: SweepFile
    path: Path
    profile: str
    profile_path: Path
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    arms: tuple[str, ...] = ()
    tuned: Mapping[str, TunedArm] = field(default_factory=dict)
    """Maps each arm to the result of the search that `tune` requires."""
    asked_in: Path | None = None
    """The folder of the sweep file at its first run, if `path` is a copy next to the records."""
    on_gpu: Callable[[], bool] = gpu_here
    """Returns whether `train.device: auto` means a GPU. Called only if a spec leaves the device open."""

    @property
    def seed_list(self) -> list[int]:
        """The seeds. With --seeds, the sweep's own seeds come first, followed by larger ones."""
        return self.sweep.seed_list if self.seeds is None else first_seeds(self.sweep.seed_list, self.seeds)

    @property
    def folder(self) -> Path:
        """The folder of the sweep file at its first run. Files that it names are searched for there."""
        return self.asked_in or self.path.parent

    @property
    def checkpoint(self) -> str | None:
        """The model that all cells evaluate without training, as named by the user; None if they train.

        If a path does not exist relative to the current folder, but relative to the sweep file's folder, the latter is
        used.
        """
        given = parse_settings(self.settings).get("checkpoint", self.sweep.checkpoint)
        if given is None:
            return None
        kind, colon, name = str(given).partition(":")
        # Sources of other kinds, such as hf:, are not paths.
        path, prefix = (name, f"{kind}:") if colon and kind in ("path", "gguf") else (str(given), "")
        is_elsewhere = not Path(path).expanduser().exists() and (self.folder / path).exists()
        return f"{prefix}{self.folder / path}" if is_elsewhere else str(given)

    @property
    def arms_layers(self) -> dict[str, list[Layer]]:
        """Maps each requested arm to all its layers, in the order of the file."""
        found = {arm: Layer(f"{self.path}: tune ({arm})", one.values) for arm, one in self.tuned.items()}
        return {
            arm: [*layers, *([found[arm]] if arm in found else []), *self.overrides]
            for arm, layers in self.arms_between(self.layers, []).items()
        }

    def arms_between(self, below: Sequence[Layer], above: Sequence[Layer]) -> dict[str, list[Layer]]:
        """Return the layers of each requested arm: `below`, the arm's own settings, `above`."""
        return {
            arm: [*below, Layer(f"{self.path}{_own(arm)}", settings), *above]
            for arm, settings in self.sweep.all_arms.items()
            if not self.arms or arm in self.arms
        }

    @property
    def layers(self) -> list[Layer]:
        """The layers that all arms share: the profile and the sweep's base.

        If nothing is trained, only the profile's evaluation knobs are used.
        """
        profile = profile_layer(self.profile_path)
        if self.checkpoint is None:
            return [profile, *self.layers_without_profile]
        said = {k: value for k, value in dotted(profile.settings).items() if knob_at(k) and acts_of(k).evaluates}
        # The profile's training task is the default of its evaluation tasks. It must be kept when the training knobs
        # are dropped.
        tasks = {"eval.tasks": [task]} if (task := dotted(profile.settings).get("task.train")) else {}
        return [BARE_MODEL, replace(profile, settings=tasks | said), *self.layers_without_profile]

    @property
    def layers_without_profile(self) -> list[Layer]:
        """The layer of the sweep's base, for use if the profile cannot be read."""
        return [Layer(f"{self.path}: base", self.sweep.base)]

    @property
    def overrides(self) -> list[Layer]:
        """The layer of --set, which overrides all arms."""
        knobs = {knob: value for knob, value in parse_settings(self.settings).items() if knob != "checkpoint"}
        return [Layer("--set", knobs)] if knobs else []

    def faults_of_an_evaluation(self) -> Iterator[str]:
        """Yield the training settings in a sweep that trains nothing, in its arms or as knobs under test."""
        if self.checkpoint is None:
            return
        layers = {layer.origin: layer for arm in self.arms_between([], []).values() for layer in arm}
        for layer in [*self.layers_without_profile, *layers.values(), *self.overrides]:
            for knob in dotted(layer.settings):
                if knob == "algorithm" or (knob_at(knob) and not acts_of(knob).evaluates):
                    yield (
                        f"{layer.origin}: {knob} is a training setting, and a sweep with `checkpoint` trains nothing. "
                        "Leave it out, or ask about it in a sweep without `checkpoint`."
                    )
        for declared in (*self.sweep.under_test, *self.sweep.co_changes):
            if not covered(declared, ASKED_OF_A_CHECKPOINT):
                yield (
                    f"{self.path}: {declared} is declared as a knob that arms differ in, but over one checkpoint they "
                    f"differ in {', '.join(ASKED_OF_A_CHECKPOINT)} only. Leave it out."
                )


def read_request(
    given: str,
    profile: str | None = None,
    settings: Sequence[str] = (),
    seeds: int | None = None,
    arms: Sequence[str] = (),
    on_gpu: Callable[[], bool] = gpu_here,
) -> SweepRequest:
    """Read a sweep file (path or shipped name) or a folder of records, with the options of the command line.

    The plug-ins that the file names are in use afterwards. For a folder of records, the options of its last run apply
    unless others are given, and so does its choice of GPU or CPU.
    on_gpu: returns whether cells whose settings name no device run on a GPU.
    Raises RefusedError with all faults of the file and of the options. If the file's form is at fault, the faults of
    its arms are included as far as they can be found.
    """
    if seeds is not None and not 1 <= seeds <= MOST_CELLS:
        raise RefusedError(
            f"--seeds is {seeds:,}, but at least 1 seed is needed."
            if seeds < 1
            else f"--seeds is {seeds:,}, but a sweep has at most {MOST_CELLS:,} cells: ask for fewer."
        )
    folder = Path(given)
    kept_profile = asked_in = None
    if (folder / "sweep.json").is_file():
        record = read_sweep(folder)
        earlier = record.asked
        if record.is_imported:
            raise RefusedError("plan.results_were_imported", folder=folder, sweep=record.name)
        if earlier is None:
            raise RefusedError("plan.report_without_sweep_file", folder=folder)
        given, asked_in = str(folder / KEPT / earlier.file), Path(earlier.folder)
        if profile in (None, earlier.profile):
            profile, kept_profile = earlier.profile, folder / KEPT / KEPT_PROFILE
        if (known := earlier.on_gpu) is not None:
            on_gpu = partial(bool, known)
        # If a knob is set twice, the later setting counts.
        by_knob = {setting.partition("=")[0].strip(): setting for setting in (*earlier.settings, *settings)}
        settings, arms = tuple(by_knob.values()), tuple(arms or earlier.arms)
        seeds = earlier.seeds if seeds is None else seeds
    faults = Faults()
    sweep, path, left_out = read_what_can_be_read(given, faults)
    profile = profile or sweep.profile
    profile_path = None
    if "profile" not in left_out or profile:
        with faults:
            found = kept_profile or find_profile(profile, beside=path)
            profile_layer(found)
            profile_path = found
    readable_settings: tuple[str, ...] = ()
    with faults:
        parse_settings(settings)
        readable_settings = tuple(settings)
    known_arms = tuple(arm for arm in arms if arm in sweep.all_arms)
    faults.lines += [f"--arms: {UnknownNameError('arm', arm, sweep.all_arms)}" for arm in arms if arm not in known_arms]
    request = SweepRequest(
        sweep,
        path,
        profile,
        profile_path or path,
        readable_settings,
        seeds,
        known_arms,
        asked_in=asked_in,
        on_gpu=on_gpu,
    )
    if (n_cells := len(request.seed_list) * max(1, len(known_arms or sweep.all_arms))) > MOST_CELLS:
        faults.lines.append(
            f"{path}: has {n_cells:,} cells, and a sweep has at most {MOST_CELLS:,}: ask for fewer seeds or arms."
        )
    if sweep.search is not None and request.checkpoint is not None and sweep.checkpoint is None:
        faults.lines.append("--set checkpoint: a search trains its trials. Leave it out.")
    # A file without faults so far is checked later, when it is planned. A faulty one is not planned, so it is checked
    # here.
    if faults.lines:
        faults.lines += _faults_of_content(request, profile_path is not None, left_out)
    faults.refuse()
    return request


def _faults_of_content(request: SweepRequest, profile_is_read: bool, left_out: Collection[str]) -> list[str]:
    """Return the faults of arms and metric in a file whose form is at fault, as far as they can be found."""
    faults = Faults()
    below = request.layers if profile_is_read else request.layers_without_profile
    arms = request.arms_between(below, request.overrides) or {"": [*below, *request.overrides]}
    if not profile_is_read or "base" in left_out:
        return _each_once({arm: faults_of_incomplete(layers) for arm, layers in arms.items()}, len(arms))
    for by_seed in resolved_arms(
        arms, request.seed_list[:1] or [0], faults, request.on_gpu, request.checkpoint
    ).values():
        evaluation, trains = next(iter(by_seed.values())).eval, request.checkpoint is None
        faults.lines += [
            f"{request.path}: {fault}" for fault in metric_faults(request.sweep.compare.metric, evaluation, trains)
        ]
        # The metric is the same for all arms, so one arm without faults suffices.
        break
    return faults.lines


def resolved_arms(
    arms: Mapping[str, Sequence[Layer]],
    seeds: Sequence[int],
    faults: Faults,
    on_gpu: Callable[[], bool],
    checkpoint: str | None = None,
) -> dict[str, dict[int, RunSpec]]:
    """Map each arm without faults to its specs by seed. Collect the faults of the other arms, each once.

    faults: the faults are added to it.
    on_gpu: as in `SweepRequest`.
    checkpoint: the model that all arms evaluate without training.
    """

    def resolved(layers: Sequence[Layer]) -> RunSpec:
        spec = resolve(layers, seeds[0], checkpoint)
        return resolved_for_machine(spec, on_gpu) if checkpoint is None else with_its_model(spec, on_gpu)

    specs: dict[str, dict[int, RunSpec]] = {}
    refused: dict[str, list[Fault]] = {}
    for arm, layers in arms.items():
        try:
            spec = resolved(layers)
            # No setting depends on the seed, so each arm is resolved only once.
            specs[arm] = {seed: spec.model_copy(update={"seed": seed}) for seed in seeds}
        except FaultyError as error:
            refused[arm] = error.faults
            faults.errors.append(error)
        except RefusedError as error:
            refused[arm] = [Fault("value", "", line) for line in str(error).splitlines()]
            faults.errors.append(error)
    faults.lines += _each_once(refused, len(arms))
    return specs


def _each_once(refused: Mapping[str, Sequence[Fault]], n_arms: int) -> list[str]:
    """Return the faults of all arms, each once.

    If only some arms have a fault, it names these arms, unless it comes from the settings of one arm.
    """
    arms_with: dict[Fault, list[str]] = {}
    for arm, faults in refused.items():
        for fault in dict.fromkeys(faults):
            arms_with.setdefault(fault, []).append(arm)
    return [
        fault.line
        if len(arms) == n_arms or any(fault.origin.endswith(_own(arm)) for arm in arms)
        else f"{fault.line} (in {'arms' if len(arms) > 1 else 'arm'} {', '.join(arms)})"
        for fault, arms in arms_with.items()
    ]


def _own(arm: str) -> str:
    """Return the end of the origin of an arm's own settings."""
    return f": arms.{arm}"


def metric_faults(given: str, evaluation: EvalSpec, trains: bool = True) -> Iterator[str]:
    """Yield the reasons why arms cannot be compared on `eval.final.[<task>.]<metric>`.

    trains: whether arms are compared over training seeds instead of over the problems of one checkpoint.
    """
    tasks = [get_task(task) for task in evaluation.tasks]
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        yield f"eval.tasks have the names {', '.join(names)}; each must have one of its own."
        return
    task, _, metric = given.removeprefix(METRIC_PREFIX).rpartition(".")
    compared = tasks[names.index(task) if task in names else 0]
    # Greedy decoding takes one sample per problem, and so do problems with given choices.
    has_one = compared.gives_choices or evaluation.is_greedy
    metrics = metrics_for([k for k in evaluation.k if k == 1] if has_one else evaluation.k)
    comparing = [name for name, (one, _) in metrics.items() if one.compares_arms]
    if not given.startswith(METRIC_PREFIX):
        yield f"compare.metric is {given!r}, but must be eval.final.[<task>.]<metric>, e.g. eval.final.pass@1."
    elif task and task not in names:
        yield f"compare.metric names task {task!r}, but eval.tasks are {', '.join(names)}."
    elif metric not in metrics:
        unknown = UnknownNameError("metric", metric, comparing, "bench ls metrics")
        why = "has one sample a problem" if has_one else f"gives those of eval.k={list(evaluation.k)}"
        yield f"compare.metric: {unknown} This evaluation {why}."
    elif metric not in comparing:
        yield (
            f"compare.metric names {metric!r}, but arms are compared by a fraction of which more is better, e.g. "
            f"{comparing[0]}. `bench ls metrics` says which metrics are."
        )
    elif not trains and not (metric.startswith("pass@") or metric == "avg@n"):
        yield (
            f"compare.metric names {metric!r}, but over one checkpoint arms are compared problem by problem, and the "
            "records hold pass@k and avg@n for single problems only: compare one of these."
        )
