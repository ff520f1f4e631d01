"""The section `trainer`: whether bench or a program of the user trains a cell, and which knobs the program reads.

A trainer is a module of `harness/trainers/`, or a plug-in. At its top level it defines a `Trainer` whose `type` has a
default, which is its name in `trainer.type`. Its other fields are knobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator

from harness.errors import InvalidError, shown
from harness.plugins import Kind, UserModule
from harness.settings import InWords, OneOf, Settings
from harness.settings.marks import NOT_HASHED

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec

BENCH = "bench"
OPEN = ("trainer.args.", "trainer.env.", "trainer.metrics.")
"""Prefixes of knobs whose names the user chooses."""
MOST_PROMPTS = 10_000_000
"""The most prompts of a cell. All of them are written to a file before an outside program starts."""


class Trainer(Settings):
    """Who trains a cell: bench or a program."""

    type: str

    def reads(self, knob: str) -> bool:
        """Return whether this trainer reads a knob that some trainers do not read (`Acts.any_trainer` is False)."""
        return True


class OutsideTrainer(Trainer):
    """A program that trains under the contract of `harness.trainers.contract`. Subclasses define how it is started."""

    args: Annotated[dict[str, object], InWords(type=lambda: "name -> value")] = Field(
        {}, description="the program's own settings, passed in its config file; each is a knob"
    )
    env: dict[str, str] = Field(
        {},
        description="environment variables to set in addition to those of bench; they are recorded, so they must not "
        "contain secrets",
    )
    metrics: Annotated[dict[str, str], NOT_HASHED] = Field(
        {},
        description="maps columns of steps.jsonl to the program's names for them; other metrics become program/<name>",
    )
    timeout_h: Annotated[float | None, NOT_HASHED] = Field(
        None,
        gt=0,
        le=1e5,
        description=("hours after which the program is stopped, counted from each start; none = no limit"),
    )
    silence_min: Annotated[float, NOT_HASHED] = Field(
        30.0, gt=0, le=1e5, description="minutes without a row or a line of output after which the program is stopped"
    )

    @field_validator("args")
    @classmethod
    def _args_are_json(cls, args: dict[str, object]) -> dict[str, object]:
        for name, value in args.items():
            if not _is_json(value):
                raise InvalidError("config.arg_is_not_json", name=name, value=shown(value))
        return args

    def knobs_read(self) -> Sequence[str]:
        """Return the knobs or sections that this program reads, in addition to those passed to every program."""
        raise NotImplementedError

    def argv(self, config: str, output: str, seed: int) -> list[str]:
        """Return the command line as a list of words.

        config: the path of the config file.
        output: the path of the output folder.
        """
        raise NotImplementedError

    def sources(self) -> list[UserModule]:
        """Return the program's files in their present state. Raises RefusedError if one is missing."""
        return []

    def folder(self) -> str | None:
        """Return the folder in which the program is started, or None for the folder in which bench was started."""
        return None

    def environment(self) -> dict[str, str]:
        """Return the environment variables to set in addition to those of bench."""
        return self.env

    def arguments(self, spec: RunSpec) -> dict[str, object]:
        return dict(self.args)

    def columns(self, spec: RunSpec) -> dict[str, str]:
        """Return the program's names for columns of steps.jsonl, by column."""
        return self.metrics

    def require_installed(self) -> None:
        """Raise RefusedError if anything but the command is missing on this machine."""

    def problems(self, spec: RunSpec) -> Iterator[str]:
        """Yield further settings of a spec that the program does not support, as messages to show before training."""
        yield from ()

    def reads(self, knob: str) -> bool:
        # The dots keep `train.step` from matching `train.steps`.
        return any(f"{knob}.".startswith(f"{read}.") for read in self.knobs_read())


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float | bool)


def _is_trainer(thing: object) -> bool:
    if not (isinstance(thing, type) and issubclass(thing, Trainer)):
        return False
    return isinstance(thing.model_fields["type"].default, str)


TRAINERS: Kind[type[Trainer]] = Kind(
    "trainer",
    _is_trainer,
    "harness.trainers",
    "bench ls trainers",
    name_of=lambda trainer: str(trainer.model_fields["type"].default),
    summary_of=lambda trainer: " ".join((trainer.__doc__ or "").split("\n\n")[0].split()).rstrip("."),
)


TrainerChoice = Annotated[Trainer, OneOf(TRAINERS), InWords(default=BENCH)]
BY_BENCH = Field({"type": BENCH}, validate_default=True)


def hands_over_pairs(spec: RunSpec) -> bool:
    """Return whether bench passes pairs to the program that trains the cell."""
    return spec.pairs.type != "none" and spec.trainer.reads("pairs.type")


def is_open(knob: str) -> bool:
    """Return whether the user chose the name of this knob, as in `trainer.args.rank`."""
    return knob.startswith(OPEN) and knob not in OPEN


def trainer_problems(spec: RunSpec) -> Iterator[str]:
    """Yield the settings that work only if bench itself trains."""
    trainer = spec.trainer
    if not isinstance(trainer, OutsideTrainer) or spec.checkpoint:
        return
    asked = f"trainer.type={trainer.type}"
    budget = spec.budget
    if spec.model.lora.type != "none":
        yield (
            f"{asked} with model.lora.type={spec.model.lora.type}: adapters are the program's own. Hand their settings "
            "over as trainer.args, save merged weights, and leave model.lora out"
        )
    feedback = {"task.order=prioritised": spec.task.order == "prioritised"}
    feedback["task.retire_at"] = spec.task.retire_at is not None
    # With such a budget, progress depends on the tokens generated so far, and the curriculum's window follows progress.
    feedback["task.order=curriculum with a budget of tokens"] = spec.task.order == "curriculum" and bool(
        budget.tokens or budget.trained_tokens
    )
    for what in (what for what, is_asked in feedback.items() if is_asked):
        yield (
            f"{asked} with {what}: the program gets all prompts of a cell before it starts, and this order depends on "
            "how training goes. Set task.order to uniform, or leave task.retire_at out"
        )
    if trainer.reads("pairs.type") and spec.pairs.type == "policy" and spec.rollout.sampler != "initial":
        yield (
            f"{asked} with pairs.type=policy and rollout.sampler={spec.rollout.sampler}: bench hands over pairs of the "
            "starting policy's completions only, drawn before training. Set rollout.sampler to initial (offline)"
        )
    if not trainer.reads("pairs.type") and spec.pairs.type == "dataset":
        yield (
            f"{asked} with pairs.type=dataset, which the program does not read. Name it in trainer.uses: [pairs], and "
            "bench hands the pairs over; or leave `pairs` out"
        )
    gold = spec.pairs.type == "policy" and bool(spec.reward.gold_parts)
    made_by_bench = {
        "pairs that are ranked by the likelihood of gold texts": gold,
        "a teacher": spec.teacher.type != "none",
        **{part.noun: True for part in spec.reward.scored},
    }
    for what in (what for what, is_asked in made_by_bench.items() if is_asked):
        yield f"{asked} with {what}, which bench does not hand over: name its files in trainer.args, and leave it out"
    for name in ("teacher_tokens", "flops"):
        if (most := getattr(budget, name)) is not None:
            yield (
                f"{asked} with budget.{name}={most:g}: bench cannot count these in a program of another's. Set "
                "train.steps, budget.tokens or budget.trained_tokens"
            )
    if (prompts := spec.train.steps * spec.rollout.prompts_per_step) > MOST_PROMPTS:
        yield (
            f"{asked} with train.steps={spec.train.steps} and rollout.prompts_per_step="
            f"{spec.rollout.prompts_per_step}: the prompts are written out before it starts, and {prompts:,} are more "
            f"than {MOST_PROMPTS:,}. Lower train.steps to what the budget needs"
        )
    if spec.train.processes > 1:
        yield (
            f"{asked} with train.processes={spec.train.processes}: the program starts its own processes, e.g. by "
            "torchrun or accelerate launch in trainer.run. Set train.processes to 1"
        )
    yield from trainer.problems(spec)
