"""`bench coldstart`: supervised fine-tuning before reinforcement learning; also the recipe of the tiny checkpoint.

A cold-start recipe file: a model source and how it is fine-tuned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from harness.cli.console import note, print_json
from harness.cli.options import JsonOption, UnusedHomeOption
from harness.config.model import SupervisedColdStart
from harness.config.resolve import readable_errors
from harness.config.section import Section
from harness.config.yaml_file import load_yaml
from harness.errors import RefusedError


def coldstart(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the checkpoint; must not exist yet.")],
    recipe: Annotated[
        Path | None, typer.Argument(help="YAML with `source` and `cold_start`; default: the recipe of builtin:tiny.")
    ] = None,
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Fine-tune a model on demonstrations and save it as a Hugging Face checkpoint (use it as `path:DIR`).

    A recipe of your own: {source: "path:my_model", cold_start: {type: sft, data: demos.jsonl, steps: 500}}

    Example: bench coldstart --out my_tiny
    """
    from harness.config.model_source import TINY

    if out.exists():
        raise RefusedError(f"--out {out} exists already and is left alone. Give a folder that does not exist.")
    loaded = load_recipe(recipe or TINY / "recipe.yaml")
    note("loading the model")

    import torch

    from harness.cli.live import Countdown
    from harness.models.language_model import load_model, weights_digest
    from harness.training.cold_start import run_cold_start

    # As in every worker: the digest below depends on the thread count.
    torch.set_num_threads(1)
    model = load_model(loaded.source)
    countdown = Countdown("cold start")
    run_cold_start(
        model, loaded.cold_start, lambda step, steps, loss: countdown.tell(step, steps, f"loss {loss:.3f} nats a token")
    )
    out.mkdir(parents=True)
    model.save(out)
    digest = weights_digest(model.model.state_dict())
    if json:
        print_json({"path": str(out), "digest": digest})
    else:
        typer.echo(f"wrote {out} (weights {digest})")


class Recipe(Section):
    """source: as `model.source`, or `scratch:tiny` for random weights of the tiny architecture."""

    source: str
    cold_start: SupervisedColdStart


def load_recipe(path: Path) -> Recipe:
    """Raises RefusedError with all faults of the file."""
    try:
        return Recipe.model_validate(load_yaml(path))
    except ValidationError as error:
        raise RefusedError("\n".join(f"{path}: {line}" for _, line in readable_errors(error))) from None
