"""Our cell on a workload, in a process of its own, taking turns.

python benchmarks/our_grpo.py WORKLOAD WARMUP_STEPS STEPS_A_TURN

It is the product's own `CellRun`, with all of its logs; checkpoints are outside of what is timed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pairs import Row, StepTurns
from workload import Workload, without_end


def main(workload: Workload, warmup_steps: int, turn: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cell_path = Path(folder) / f"ours-s{workload.seed}-0000000000"
        cell_path.mkdir()
        turns = StepTurns(warmup_steps, turn, lambda first, last: measured(cell_path, first, last))

        from harness.executors.base import Event
        from harness.models.language_model import LanguageModel
        from harness.models.start import StartingPoint
        from harness.records import CellRecord
        from harness.run.cell import CellRun
        from harness.run.learning.base import Examples
        from harness.run.prompts import training_prompts

        def after_step(event: Event) -> None:
            if event["phase"] == "training":
                turns.after_step(event["step"])

        spec = workload.spec()
        starting_point = StartingPoint()

        def begin() -> LanguageModel:
            start = starting_point.for_training(spec, spec.model.source)
            if workload.full_length:
                without_end(start)
            return start

        examples = Examples(training_prompts(spec, {}))
        CellRun(CellRecord.at(cell_path), spec, begin, examples, after_step).run()


def measured(cell_path: Path, first: int, last: int) -> Row:
    """Means over steps, from the cell's own records."""
    from harness.records import CellRecord
    from harness.records.files import read_jsonl

    cell = CellRecord.at(cell_path)
    numbers = range(first, last + 1)
    steps = {row["step"]: row for row in cell.read_steps()}
    timing = {row["step"]: row for row in read_jsonl(cell.path / "timing.jsonl") if "total_s" in row}
    # The records count tokens from the first step on.
    generated = [steps[n]["generated_tokens"] - steps[n - 1]["generated_tokens"] for n in numbers]
    return {
        "completions": _mean([tokens / steps[n]["len/mean"] for n, tokens in zip(numbers, generated, strict=True)]),
        "generated_tokens": _mean(generated),
        "reward": _mean([steps[n]["reward/mean"] for n in numbers]),
        "tokens_in_loss": _mean(generated),
        "tokens_trained": _mean([steps[n]["tokens_in_loss"] for n in numbers]),
        "timing": {
            key: _mean([timing[n][key] for n in numbers])
            for key in timing[last]
            if key not in ("step", "epoch") and all(timing[n][key] is not None for n in numbers)
        },
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main(Workload.from_json(sys.argv[1]), *map(int, sys.argv[2:]))
