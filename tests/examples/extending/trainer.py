"""A trainer that copies its starting weights, to measure the cost of everything around training."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from harness.config.trainer import OutsideTrainer

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec

PROGRAM = """
import json, pathlib, shutil, sys, time
config = json.loads(pathlib.Path(sys.argv[1]).read_text())
output, step = pathlib.Path(config["output"]), config["budget"]["steps"]
time.sleep(float(sys.argv[2]))
shutil.copytree(config["model"], output / "copy")
rows = [{"step": one, "generated_tokens": 0} for one in range(1 + config["done"]["step"], step + 1)]
rows.append({"step": step, "checkpoint": "copy"})
(output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
"""


class Copying(OutsideTrainer):
    """Trains nothing: every cell ends with its starting weights."""

    type: Literal["copying"] = "copying"
    pause_s: float = Field(0.0, ge=0, description="seconds before it copies")

    def knobs_read(self) -> Sequence[str]:
        return ()

    def argv(self, config: str, output: str, seed: int) -> list[str]:
        return [sys.executable, "-c", PROGRAM, config, str(self.pause_s)]

    def problems(self, spec: RunSpec) -> Iterator[str]:
        if spec.eval.every:
            yield f"trainer.type=copying with eval.every={spec.eval.every}: the curve would be flat. Set it to 0"
