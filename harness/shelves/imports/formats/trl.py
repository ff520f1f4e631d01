"""TRL's `trainer_state.json`, which any Hugging Face Trainer writes into its checkpoints. It holds no settings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from harness.errors import RefusedError
from harness.shelves.imports.base import ImportedRun, ImportFormat
from harness.shelves.imports.names import log

_CHECKPOINT = re.compile(r"checkpoint-\d+")
BOOKKEEPING = frozenset(
    {"seed", "data_seed", "output_dir", "logging_dir", "run_name", "hub_model_id", "report_to", "project", "trial_name"}
)


def _reads(source: str) -> bool:
    return Path(source).name == "trainer_state.json" and Path(source).is_file()


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    """Read each run's last checkpoint, whose log includes those of the earlier ones."""
    last: dict[Path, tuple[int, str, list[tuple[int, dict[str, object]]]]] = {}
    for source in sources:
        try:
            document = json.loads(Path(source).read_text(encoding="utf-8"))
            rows = [(int(row["step"]), row) for row in document["log_history"]]
            found = (int(document["global_step"]), source, rows)
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError("shelves.imports.not_a_trainer_state", source=source, error=error) from None
        folder = Path(source).parent
        # The checkpoints of a run are folders below the run's own.
        run = folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder
        last[run] = max(last.get(run, found), found, key=lambda one: one[0])
    return [_run(folder, source, rows) for folder, (_, source, rows) in last.items()]


def _run(folder: Path, source: str, rows: Sequence[tuple[int, dict[str, object]]]) -> ImportedRun:
    run = ImportedRun(source, folder.name)
    for step, row in rows:
        log(run, step, {name: value for name, value in row.items() if name not in _OF_THE_END})
    return run


_OF_THE_END = frozenset(
    {"step", "epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos"}
)

TRL = ImportFormat("trl", "trainer_state.json of TRL, or any Hugging Face Trainer", _reads, _read, BOOKKEEPING)
