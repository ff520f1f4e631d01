"""`bench export`: tables for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli.console import print_json, print_text
from harness.cli.options import HomeOption, JsonOption, RunArgument, TrustOption
from harness.words import said


def export(
    sweep: RunArgument,
    to: Annotated[Literal["csv", "parquet"], typer.Option("--to", help=said("cli.help_export_to"))] = "csv",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help=said("cli.help_export_out"))] = None,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write the tables of a run for other programs.

    The tables are scores, steps, samples and contrasts. `bench import` can read the scores and the samples.

    Example: bench export std_norm --to parquet
    """
    from harness.api import load
    from harness.records.files import require_inside

    results = load(sweep, home, trust_code)
    usual = results.sweep.path / "export"
    if out is None:
        require_inside(results.sweep.path, [usual, *usual.rglob("*")])
    written = results.export(out or usual, to)
    if json:
        print_json([str(path) for path in written])
        return
    for path in written:
        print_text(f"wrote {path}")
