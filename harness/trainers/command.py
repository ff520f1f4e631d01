"""`trainer.type: command`: any program that follows the contract."""

from __future__ import annotations

import shlex
import string
import sys
from typing import Annotated, Literal

from pydantic import Field, field_validator

from harness import plugins
from harness.config.knobs import spec_knobs
from harness.config.trainer import OutsideTrainer, is_open
from harness.errors import RefusedError, UnknownNameError, nearest, shown
from harness.plugins import UserModule
from harness.settings import Listed
from harness.settings.marks import NOT_HASHED, REFERS
from harness.trainers.contract import VERSION

FIELDS = {
    "config": "the path of its config file",
    "output": "the folder that it writes into",
    "seed": "the cell's seed",
    "python": "the Python that runs bench",
}
"""The placeholders that `trainer.run` may contain, with their meanings."""


class CommandTrainer(OutsideTrainer):
    """A program of your own trains. bench prepares its inputs, reads its output and evaluates its checkpoints.

    `bench show trainer` prints the contract.
    """

    type: Literal["command"] = "command"
    run: Annotated[str, REFERS] = Field(
        description=(
            'the command line, e.g. "python train.py --config {config}"; it is not run in a shell; {output}, {seed} '
            "and {python} are filled in too"
        )
    )
    files: Annotated[Listed[str], REFERS] = Field(
        (),
        description="the program's files, relative to the sweep file; they are hashed and copied, with everything that "
        "they import from their folders",
    )
    uses: Annotated[Listed[str], NOT_HASHED] = Field(
        (), description="knobs, or sections, of bench that the program reads from its config file; it gets no others"
    )
    contract: int = Field(VERSION, ge=1, description="the version of the contract for which the program is written")

    @field_validator("run")
    @classmethod
    def _run_can_be_filled_in(cls, run: str) -> str:
        try:
            words = shlex.split(run)
            named = [name for word in words for _, name, _, _ in string.Formatter().parse(word) if name is not None]
        except ValueError as error:
            raise ValueError(f"run is {shown(run)}, which is no command line ({error}). Write {{{{ for a {{") from None
        for name in named:
            if name not in FIELDS:
                raise ValueError(
                    f"run has {{{name}}}, and there is no such field{nearest(name, FIELDS)} Fields: "
                    f"{', '.join(f'{{{field}}}' for field in FIELDS)}; write {{{{ for a brace"
                )
        if "config" not in named:
            raise ValueError(
                f"run is {shown(run)}: without {{config}} the program does not know what to train. Add it, e.g. "
                "--config {config}"
            )
        return run

    @field_validator("uses")
    @classmethod
    def _uses_are_knobs(cls, uses: tuple[str, ...]) -> tuple[str, ...]:
        for entry in uses:
            if not any(f"{knob}.".startswith(f"{entry}.") for knob in spec_knobs()) and not is_open(entry):
                raise UnknownNameError("knob", entry, spec_knobs(), "bench ls knobs")
        return uses

    @field_validator("contract")
    @classmethod
    def _contract_is_known(cls, contract: int) -> int:
        if contract > VERSION:
            raise ValueError(
                f"contract is {contract}, and this version of bench speaks {VERSION}: update bench, or write the "
                f"program for {VERSION} (`bench show trainer`)"
            )
        return contract

    def knobs_read(self) -> tuple[str, ...]:
        return self.uses

    def argv(self, config: str, output: str, seed: int) -> list[str]:
        values = {"config": config, "output": output, "seed": seed, "python": sys.executable}
        return [word.format(**values) for word in shlex.split(self.run)]

    def sources(self) -> list[UserModule]:
        for word in shlex.split(self.run):
            if word.endswith((".py", ".sh")) and word not in self.files and plugins.user_file(word).is_file():
                raise RefusedError("trainers.program_not_named", file=word)
        return [plugins.program(self.files, "trainer.files")] if self.files else []

    def folder(self) -> str | None:
        return str(plugins.folder_of_program(self.files, "trainer.files")) if self.files else None
