"""`bench probe`: gradient estimates at frozen weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.console import print_json, print_table
from harness.cli.options import HomeOption, JsonOption, ProfileOption, SetOption
from harness.cli.verb import Verb
from harness.errors import RefusedError, note
from harness.runs import home_folder
from harness.words import said


def probe(
    file: Annotated[str, typer.Argument(help=said("shelves.probe.help_probe_file"))] = "probe",
    cell: Annotated[
        Path | None,
        typer.Option("--cell", metavar="DIR", help=said("shelves.probe.help_probe_cell")),
    ] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Measure bias and variance of gradient estimates; train nothing.

    It compares the objectives, group sizes and batch sizes that the probe file lists.

    Example: bench probe --cell runs/std_norm/cells/group_std-s0-1f2e3d4c5b
    """
    from harness.shelves.probe.design import make_design

    # The design needs no torch, so a faulty file is refused before the slow imports below.
    design = make_design(file, profile, set_ or [])
    folder = home_folder(home) / "probes" / design.file.name
    note(f"{len(design.points)} points x {len(design.file.objectives)} objectives; loading the model")

    import torch

    from harness.cli.live import Countdown
    from harness.shelves.probe.findings import findings, write_findings
    from harness.shelves.probe.measure import frozen_policy, measure

    # As in every worker: the numbers depend on the thread count.
    torch.set_num_threads(1)
    policy = frozen_policy(design.reference, cell)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError("shelves.probe.folder_not_writable", folder=folder, reason=error.strerror) from None
    measurement = measure(design, policy, Countdown("gradients").tell)
    document = findings(design, measurement)
    write_findings(folder, document, measurement)
    if json:
        print_json(document)
    else:
        _print_probe(document)
        typer.echo(f"\nwrote {folder}")


_MEASURES = {
    "cosine": "cosine of the mean estimate to the gradient of the expected reward: 1 = its direction is unbiased",
    "cosine_difference": "difference of this cosine from that of {baseline}, on the same completions",
    "noise_to_signal": "noise: variance of an estimate over the squared norm of its mean",
    "noise_ratio": "noise as a multiple of that of {baseline}, on the same completions",
    "estimate_cosine": "cosine of a single estimate to the gradient of the expected reward",
    "mean_norm": "norm of the mean estimate",
}


def _print_probe(document: dict[str, Any]) -> None:
    model, reference = document["model"], document["reference"]
    noise = reference["noise_to_signal"]
    known = (
        "hidden by its noise: raise reference.prompts" if noise is None else f"noise {noise:.3f} of its squared norm"
    )
    print(
        f"probe {document['name']} at {model['source']} (weights {model['weights'][:10]}), mean reward "
        f"{reference['mean_reward']:.3f}\nreference gradient: of {reference['completions']:,} completions; {known}"
    )
    cells = {(row["objective"], row["group_size"], row["batch_size"]): row for row in document["points"]}
    objectives = dict.fromkeys(name for name, _, _ in cells)
    points = dict.fromkeys((group, batch) for _, group, batch in cells)
    columns = ["objective", *(f"{group} of {batch}" for group, batch in points)]
    for measure, title in _MEASURES.items():
        rows = [[name, *(_interval(cells[name, *point][measure]) for point in points)] for name in objectives]
        print()
        print_table(title.format(baseline=document["baseline"]), columns, rows)
    print("\ncolumns: group size of batch size; in brackets: 95 % interval")


def _interval(interval: dict[str, float | None] | None) -> str:
    if interval is None:
        return "-"
    value, low, high = (None if bound is None else _decimals(bound) for bound in interval.values())
    if value is None:
        return "noise"
    return value if low is None else f"{value} [{low}, {high}]"


def _decimals(value: float) -> str:
    """Format a value with three figures and at most three decimals; no minus before a zero."""
    # `or 0.0` turns -0.0 into 0.0.
    rounded = round(float(f"{value:.3g}"), 3) or 0.0
    size = abs(rounded)
    return f"{rounded:.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


VERB = Verb("Ask", probe)
