"""`bench sync`: bring the MLflow mirror up to date."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.console import note, print_json
from harness.cli.options import HomeOption, JsonOption, home_folder, run_folder


def sync(
    sweep: Annotated[
        str | None, typer.Argument(help="Name of a sweep that was run; all of them, and all evaluations, if left out.")
    ] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Mirror finished sweeps and evaluations to MLflow. What is there already is not added again.

    Example: bench sync std_norm
    """
    from harness.tracking import Mirror, sync_evaluations, tracking_uri

    folder = home_folder(home)
    folders = [run_folder(sweep, folder)] if sweep else [path.parent for path in sorted(folder.glob("*/sweep.json"))]
    points = {}
    for path in folders:
        note(f"mirroring {path.name} to {tracking_uri(folder)}")
        points[path.name] = Mirror(path, tracking_uri(folder)).sync()
    evaluations = 0 if sweep else sync_evaluations(tracking_uri(folder), folder)
    if json:
        print_json({"tracking_uri": tracking_uri(folder), "new_points": points, "evaluations": evaluations})
    else:
        for name, count in points.items():
            typer.echo(f"{name}: {count} new points")
        if evaluations:
            typer.echo(f"evaluations: {evaluations}")
