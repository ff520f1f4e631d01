"""`bench selftest`: does bench work on this machine?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import print_json, print_table
from harness.cli.options import JsonOption, UnusedHomeOption
from harness.cli.verb import Verb
from harness.errors import BenchError, RefusedError, note
from harness.words import said


def selftest(
    device: Annotated[
        str, typer.Option("--device", metavar="D", help=said("shelves.selftest.help_selftest_device"))
    ] = "auto",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", help=said("shelves.selftest.help_selftest_only")),
    ] = None,
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Check that bench works on this machine. On a new GPU, run this first.

    It checks the engines, bfloat16, CUDA graphs, vLLM's weight sync, the memory estimate, resume after a kill, two
    cells at once, and the time of a step. It takes at most 10 minutes and skips checks whose packages are missing. It
    writes the results, versions and hardware to selftest-<gpu or cpu>.json in the current folder, and exits with 1 if
    a check failed.

    Example: bench selftest --device cuda
    """
    from dataclasses import asdict

    from harness.cli.live import duration
    from harness.records.files import file_name, write_json
    from harness.shelves.selftest.checks import CHECKS, Outcome, device_name, machine, run_checks

    names = [CHECKS.find(name).name for name in only or CHECKS.names()]
    device = _device_to_try(device)
    path = Path(f"selftest-{file_name(device_name(device))}.json")
    outcomes: list[Outcome] = []
    for outcome in run_checks(device, names, lambda name: note(f"{len(outcomes) + 1}/{len(names)} {name} ...")):
        outcomes.append(outcome)
        note(f"{len(outcomes)}/{len(names)} {outcome.check}: {outcome.result}, {outcome.found}")
    failed = [outcome for outcome in outcomes if outcome.result == "failed"]
    document = {"device": device, "machine": machine(device), "passed": not failed, "checks": [*map(asdict, outcomes)]}
    write_json(path, document)
    if json:
        print_json(document | {"path": str(path)})
    else:
        rows = [[one.check, one.result, duration(one.took_s) if one.took_s else "", one.found] for one in outcomes]
        print_table(f"{device_name(device)}", ["check", "", "took", "found"], rows)
        typer.echo(f"wrote {path}")
    if failed:
        raise BenchError(
            "shelves.selftest.checks_failed",
            n_failed=len(failed),
            n_checks=len(names),
            failed=", ".join(one.check for one in failed),
            path=path,
        )


def _device_to_try(given: str) -> str:
    """Return --device with `auto` resolved; for `cuda:N`, hide all other GPUs.

    Raises RefusedError if there is no such device.
    """
    from harness.executors.slots import gpu_here, show_only

    if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", given) is None:
        raise RefusedError("shelves.selftest.unknown_device", given=given)
    if given.startswith("cuda") and not gpu_here():
        raise RefusedError("shelves.selftest.no_gpu", given=given)
    if given == "auto":
        return "cuda" if gpu_here() else "cpu"
    return show_only(given)


VERB = Verb("Maintain", selftest, {"checks": "harness.shelves.selftest.checks:CHECKS"})
