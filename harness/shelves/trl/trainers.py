"""`trainer.type: trl`: TRL's own trainers train, with bench's knobs as their settings.

`algorithms.elsewhere.trl` translates the objective; `program` next to this file is what runs. A knob that TRL cannot
express is refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from algorithms import Objective
from algorithms.dialects import Config, Translation, names_of, translate
from algorithms.elsewhere.trl import TRL
from evals.graders import judge_of, runs_code
from evals.prompts import get_template
from evals.tasks import get_task
from evals.yaml_file import load_yaml
from harness import plugins
from harness.config.knobs import active
from harness.config.trainer import OutsideTrainer
from harness.errors import RefusedError, nearest, shown
from harness.plugins import UserModule
from harness.rewards import RewardContext, TotalReward
from harness.settings import Settings
from harness.settings.marks import REFERS

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec

PROGRAM = "harness.shelves.trl.program"
VERSION = TRL.title.rpartition(" ")[2]
"""The version of TRL to which the settings belong."""
TRAINERS_OF = {
    "GRPOConfig": "GRPOTrainer",
    "RLOOConfig": "RLOOTrainer",
    "DPOConfig": "DPOTrainer",
    "KTOConfig": "KTOTrainer",
}
"""Config classes, each with the trainer that reads it. TRL's experimental trainers are not run."""

_READ = (
    *("objective", "pairs", "reward", "rollout"),
    *("train.learning_rate", "train.lr_schedule", "train.warmup_steps", "train.weight_decay", "train.optimizer"),
    *("train.max_grad_norm", "train.updates_per_rollout", "train.epochs", "train.optimizer_reset"),
    *("train.activation_checkpointing", "train.micro_batch_tokens"),
)
_EXPRESSED = frozenset(
    (
        *("rollout.engine", "rollout.vllm_memory_frac", "rollout.prompts_per_step", "rollout.samples_per_prompt"),
        *("rollout.max_completion_tokens", "rollout.temperature", "rollout.top_p", "rollout.top_k"),
        *("train.device", "train.steps", "train.checkpoint_every", *_READ),
        # These say only how bench itself trains: memory, processes, and extra records.
        *("train.logits_chunk_tokens", "train.processes", "train.sharding"),
        *("train.reference_rows", "train.token_records_max_tokens"),
    )
) - {"train.optimizer", "train.optimizer_reset"}
"""Knobs of `rollout` and `train` that may have any value; the others must keep their default."""
_COLUMNS = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "learning_rate", "entropy/full": "entropy"}
_OF_COMPLETIONS = (
    *("reward/mean", "reward/std", "reward/correct", "reward/frac_zero_std", "len/mean", "len/truncated_frac"),
)
_OF_PAIRS = {
    "rewards/chosen": "rewards/chosen",
    "rewards/rejected": "rewards/rejected",
    "rewards/margin": "rewards/margins",
    "logps/chosen_sum": "logps/chosen",
    "logps/rejected_sum": "logps/rejected",
}
_OF_TRAINER = {"DPOTrainer": {"rewards/accuracy": "rewards/accuracies"}, "KTOTrainer": {"kl/zero_point": "kl"}}


class ProgramArguments(Settings):
    """The `args` of the program's config file."""

    trainer: str
    """The name of TRL's class."""
    settings: dict[str, object]
    """TRL's settings, except those that follow from the machine and the prompts."""
    spec: dict[str, object]
    """The run spec as JSON, which may need the plug-ins. The program finds everything else in it."""
    plugins: list[str]
    """The names of the user's modules to load."""
    folders: list[str]
    """The folders in which they are looked up."""


class TrlTrainer(OutsideTrainer):
    """TRL trains: its GRPOTrainer, RLOOTrainer, DPOTrainer or KTOTrainer, as the algorithm asks.

    Knobs of bench become TRL's settings, and rewards are bench's own. A knob that TRL cannot express is refused by
    name. `trainer.args` holds further settings of TRL. Needs the extra `trl`.
    """

    type: Literal["trl"] = "trl"
    launch: Literal["python", "accelerate"] = Field(
        "python", description="how it is started: as one process, or by `accelerate launch` as several"
    )
    accelerate_config: Annotated[str | None, REFERS] = Field(
        None, description="accelerate's own config file, relative to the sweep file; with launch=accelerate"
    )

    def contradictions(self) -> Iterator[str]:
        if (self.launch == "accelerate") != (self.accelerate_config is not None):
            yield (
                f"launch={self.launch} with accelerate_config={self.accelerate_config}: accelerate launch reads its "
                "processes from a config file (`accelerate config` writes one). Give both, or neither"
            )

    def knobs_read(self) -> tuple[str, ...]:
        return _READ

    def argv(self, config: str, output: str, seed: int) -> list[str]:
        start = ["-m", PROGRAM, config]
        if self.accelerate_config is not None:
            start = ["-m", "accelerate.commands.launch", "--config_file", self.accelerate_config, *start]
        return [sys.executable, *start]

    def sources(self) -> list[UserModule]:
        named = self.accelerate_config
        return [] if named is None else [plugins.program([named], "trainer.accelerate_config")]

    def folder(self) -> str | None:
        named = self.accelerate_config
        return None if named is None else str(plugins.folder_of_program([named], "trainer.accelerate_config"))

    def environment(self) -> dict[str, str]:
        # So that modules in its folder shadow none of ours, in any process that accelerate starts.
        return {"PYTHONSAFEPATH": "1", **self.env}

    def columns(self, spec: RunSpec) -> dict[str, str]:
        if isinstance(spec.objective, Objective):
            parts = [f"reward/{part}" for part in TotalReward(reward_context(spec)).names]
            own = {name: name for name in (*_OF_COMPLETIONS, *parts)}
        else:
            own = _OF_PAIRS | _OF_TRAINER[_trainer_of(spec)]
        return {**own, **_COLUMNS, **self.metrics}

    def arguments(self, spec: RunSpec) -> dict[str, object]:
        names, folders = plugins.asked_for()
        return ProgramArguments(
            trainer=_trainer_of(spec),
            settings={**settings_of(spec), **self.args},
            spec=spec.model_dump(mode="json"),
            plugins=names,
            folders=[str(folder.resolve()) for folder in folders],
        ).model_dump()

    def require_installed(self) -> None:
        try:
            found = metadata.version("trl")
        except metadata.PackageNotFoundError:
            raise RefusedError("shelves.trl.not_installed") from None
        if found != VERSION:
            raise RefusedError("shelves.trl.version_differs", found=found, version=VERSION)

    def problems(self, spec: RunSpec) -> Iterator[str]:
        """Yield why TRL cannot train this spec, one sentence per reason."""
        translation = translate(TRL, spec.objective)
        if translation.config.name not in TRAINERS_OF:
            yield (
                f"trainer.type=trl: the nearest to this objective is TRL's experimental {translation.config.name}, "
                f"which bench cannot run. Choose one of {', '.join(TRAINERS_OF.values())}, or let bench train"
            )
            return
        yield from _lost_knobs(translation, spec)
        yield from _knobs_of_run(spec)
        yield from _rewards(spec)
        yield from self._own_settings(translation.config, spec)
        yield from self._processes(spec)

    def _own_settings(self, config: Config, spec: RunSpec) -> Iterator[str]:
        """Yield the settings in `trainer.args` that bench sets itself, or that TRL does not know."""
        ours = settings_of(spec)
        for name in self.args:
            if name in ours or name in config.defaults or name in config.plain or name in _BY_PROGRAM:
                yield (
                    f"trainer.args.{name}: bench sets this of {config.name} by its own knobs (`bench show ... --as "
                    "trl`), so that both arms share it. Set the knob instead, and leave this out"
                )
            elif not config.knows(name) or name in names_of("trl", "script"):
                yield f"trainer.args.{name}: {config.name} has no such setting{nearest(name, config.others)}"

    def _processes(self, spec: RunSpec) -> Iterator[str]:
        """Yield why the number of processes in accelerate's file does not suit the spec."""
        if self.accelerate_config is None:
            return
        path = plugins.user_file(self.accelerate_config)
        if not path.is_file():
            yield f"trainer.accelerate_config={self.accelerate_config}: there is no such file beside the sweep file"
            return
        processes = load_yaml(path).get("num_processes", 1)
        if not isinstance(processes, int) or processes < 1:
            yield (
                f"trainer.accelerate_config={self.accelerate_config}: num_processes is {shown(processes)} there. "
                "Set it to the number of GPUs that train a cell"
            )
        elif not isinstance(spec.objective, Objective):
            yield (
                "trainer.launch=accelerate with an algorithm on pairs: the number of pairs can vary from step to step, "
                "so processes could not share them evenly. Set trainer.launch to python"
            )
        elif spec.rollout.prompts_per_step % processes:
            yield (
                f"rollout.prompts_per_step={spec.rollout.prompts_per_step} with {processes} processes "
                f"({self.accelerate_config}): each needs the same number of whole groups. Choose a multiple of "
                f"{processes}"
            )


_BY_PROGRAM = (
    *("output_dir", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
    *("generation_batch_size", "num_train_epochs", "use_cpu", "data_seed", "save_steps", "save_total_limit"),
    *("save_only_model", "resume_from_checkpoint", "logging_strategy", "lr_scheduler_type", "lr_scheduler_kwargs"),
    *("warmup_steps", "reward_funcs", "reward_weights", "model_init_kwargs", "dataset_name", "datasets"),
    *("ignore_data_skip", "dataloader_drop_last", "auto_find_batch_size", "num_generations_eval", "eval_strategy"),
    *("generation_kwargs", "min_p"),  # would overrule rollout.temperature and its like
    *("optim", "optim_args", "optim_target_modules", "load_best_model_at_end"),
)
"""Settings that follow from the machine, the prompts and the contract.

The program sets them, or keeps TRL's defaults.
"""


def reward_context(spec: RunSpec) -> RewardContext:
    """Return what rewards depend on besides completions; the step is filled in later."""
    objective, limit = spec.policy_gradient, spec.rollout.max_completion_tokens
    task = get_task(spec.task.train)
    return RewardContext(0, spec.seed, limit, spec.reward, objective.overlong, objective.credit, task)


def _trainer_of(spec: RunSpec) -> str:
    return TRAINERS_OF[translate(TRL, spec.objective).config.name]


def settings_of(spec: RunSpec) -> dict[str, object]:
    """Build TRL's settings for a spec without `problems`, except those that follow from the machine and the prompts."""
    translation = translate(TRL, spec.objective)
    knobs, updates = active(spec), spec.optimizer_steps_per_rollout
    plain = {setting: knobs[knob] for setting, knob in translation.config.plain.items() if knob in knobs}
    drawing: dict[str, object] = {}
    if isinstance(spec.objective, Objective):
        with_vllm = spec.rollout.engine == "vllm"
        memory = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": spec.rollout.vllm_memory_frac}
        drawing = {"use_vllm": with_vllm, **(memory if with_vllm else {}), "shuffle_dataset": False}
    else:
        drawing = {"max_length": None}  # pairs that are too long were dropped or cut before
    return {
        **translation.written.settings,
        **plain,
        **drawing,
        "max_steps": spec.train.steps * updates,
        "seed": spec.seed,
        "disable_dropout": True,
        "bf16": spec.model.dtype == "bfloat16",
        "gradient_checkpointing": spec.train.activation_checkpointing,
        "remove_unused_columns": False,
        # A row of metrics for each rollout batch; a loss that is not finite is logged as it is.
        "logging_steps": updates,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def _lost_knobs(translation: Translation, spec: RunSpec) -> Iterator[str]:
    """Yield the parts of the objective that would act and that the trainer cannot express."""
    name = TRAINERS_OF[translation.config.name]
    # With several optimiser steps per rollout, ratios leave 1, and parts that are inert at ratio 1 act.
    inert = translation.inert if spec.optimizer_steps_per_rollout == 1 else {}
    for lost in (one for one in translation.lost if one not in inert):
        if lost in translation.differs:
            ours, theirs = translation.differs[lost]
            yield (
                f"trainer.type=trl with objective.{lost}={shown(ours)}: TRL's {name} uses {shown(theirs)}. Set "
                "that in all arms, or let bench train"
            )
        else:
            how = translation.point.outside[lost]
            yield f"trainer.type=trl: TRL's {name} departs from this objective in {lost}: {how}. Let bench train"


def _knobs_of_run(spec: RunSpec) -> Iterator[str]:
    """Yield the knobs of sampling and training without an equivalent in TRL."""
    drawn = ["rollout"] if isinstance(spec.objective, Objective) else []
    for section in (*drawn, "train"):
        of_section = getattr(spec, section)
        for field, value in of_section:
            default = type(of_section).model_fields[field].default
            if f"{section}.{field}" not in _EXPRESSED and value != default and field != "optimizer":
                kind = ".type" if hasattr(value, "type") else ""
                yield (
                    f"trainer.type=trl with {section}.{field}{kind}={shown(getattr(value, 'type', value))}: TRL has "
                    "nothing like it. Leave it out, or let bench train"
                )
    if spec.train.optimizer.type != "adamw":
        yield (
            f"trainer.type=trl with train.optimizer.type={spec.train.optimizer.type}: only AdamW is the same in both. "
            "Set it to adamw, or let bench train"
        )
    if spec.model.head_dtype != "model":
        yield (
            f"trainer.type=trl with model.head_dtype={spec.model.head_dtype}: TRL would train with another head than "
            "it samples with. Set it to model"
        )
    if not isinstance(spec.objective, Objective):
        yield from _knobs_of_pairs(spec)


def _knobs_of_pairs(spec: RunSpec) -> Iterator[str]:
    if spec.optimizer_steps_per_rollout > 1:
        yield (
            f"trainer.type=trl with train.updates_per_rollout={spec.train.updates_per_rollout}, train.epochs="
            f"{spec.train.epochs}: with pairs, an optimiser step takes all pairs of a step, once. Set both to 1"
        )
    if spec.rollout.temperature != 1:
        yield (
            f"trainer.type=trl with rollout.temperature={spec.rollout.temperature:g}: TRL's trainers on pairs take "
            "log-probs at temperature 1. Set it to 1"
        )


def _rewards(spec: RunSpec) -> Iterator[str]:
    """Yield ways of sampling and rewarding completions that only bench's own training has."""
    task, grader = get_task(spec.task.train), spec.reward.grader
    if not isinstance(spec.objective, Objective):
        return
    gold = ", ".join(f"reward.parts.{part}" for part in spec.reward.gold_parts)
    alone = {
        f"the stop strings of task.template={spec.task.template}": bool(get_template(spec.task.template).stop),
        f"task.train={spec.task.train}, whose completions have turns,": task.environment is not None,
        f"task.direct_frac={spec.task.direct_frac:g}": bool(spec.task.direct_frac),
        f"{gold}, which the policy must score,": bool(gold),
        "reward.parts.own_logp, which the sampler must report,": "own_logp" in spec.reward.parts,
        f"reward.grader={grader}, a judge,": judge_of(grader) is not None,
        f"reward.grader={grader}, which runs code,": runs_code(grader),
    }
    for what in (what for what, is_asked in alone.items() if is_asked):
        yield f"trainer.type=trl with {what}: only bench's own training has it. Leave it out, or let bench train"
