"""The section `trainer`: who trains a cell, bench or a program of the user's own, and which knobs such a program reads.

A trainer is a module of `harness/trainers/`, or a plug-in. At its top level it has a `Trainer` whose `type` has a
default, the name that `trainer.type` gives it. Its other fields are knobs.
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
"""Prefixes below which the user chooses the names; each is a knob."""
MOST_PROMPTS = 10_000_000
"""The most prompts of a cell, since they are written into a file before its program starts."""


class Trainer(Settings):
    """Who trains a cell."""

    type: str

    def reads(self, knob: str) -> bool:
        """Return whether it reads a knob of the spec that not every trainer reads (`Acts.any_trainer`)."""
        return True


class OutsideTrainer(Trainer):
    """A program that trains by the contract of `harness.trainers.contract`. A subclass says how it is started."""

    args: Annotated[dict[str, object], InWords(type=lambda: "name -> value")] = Field(
        {}, description="settings of the program's own, handed over in its config file; each is a knob"
    )
    env: dict[str, str] = Field(
        {}, description="environment variables on top of those of bench; recorded, so no place for secrets"
    )
    metrics: Annotated[dict[str, str], NOT_HASHED] = Field(
        {}, description="column of steps.jsonl -> the program's name for it; other metrics become program/<name>"
    )
    timeout_h: Annotated[float | None, NOT_HASHED] = Field(
        None, gt=0, le=1e5, description="hours after which a start of the program is stopped; none = no limit"
    )
    silence_min: Annotated[float, NOT_HASHED] = Field(
        30.0, gt=0, le=1e5, description="minutes without a row or a line of output after which it is stopped"
    )

    @field_validator("args")
    @classmethod
    def _args_are_json(cls, args: dict[str, object]) -> dict[str, object]:
        for name, value in args.items():
            if not _is_json(value):
                raise InvalidError("config.arg_is_not_json", name=name, value=shown(value))
        return args

    def knobs_read(self) -> Sequence[str]:
        """Return the knobs or sections that this program reads, besides those handed to every program."""
        raise NotImplementedError

    def argv(self, config: str, output: str, seed: int) -> list[str]:
        """Return the command line, word by word. config, output: paths."""
        raise NotImplementedError

    def sources(self) -> list[UserModule]:
        """Return the program's files, as they are now. Raises RefusedError for a missing one."""
        return []

    def folder(self) -> str | None:
        """Return the folder in which the program is started; None: the one in which bench was started."""
        return None

    def environment(self) -> dict[str, str]:
        """Return environment variables to set on top of bench's own."""
        return self.env

    def arguments(self, spec: RunSpec) -> dict[str, object]:
        """Return the `args` of its config file."""
        return dict(self.args)

    def columns(self, spec: RunSpec) -> dict[str, str]:
        """Map columns of steps.jsonl to the program's names for them."""
        return self.metrics

    def require_installed(self) -> None:
        """Raise RefusedError if something besides the command is missing on this machine."""

    def problems(self, spec: RunSpec) -> Iterator[str]:
        """Yield what else of a spec it cannot do, for messages before anything trains."""
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
"""The type of the field in a spec."""
BY_BENCH = Field({"type": BENCH}, validate_default=True)


def hands_over_pairs(spec: RunSpec) -> bool:
    """Return whether bench gives pairs to the program that trains the cell."""
    return spec.pairs.type != "none" and spec.trainer.reads("pairs.type")


def is_open(knob: str) -> bool:
    """Return whether the user chose the name of this knob, as in `trainer.args.rank`."""
    return knob.startswith(OPEN) and knob not in OPEN


def trainer_problems(spec: RunSpec) -> Iterator[str]:
    """Yield what bench does in training only if it trains itself."""
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
    # Such a budget makes progress depend on the tokens generated so far, and the curriculum's window follows progress.
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
