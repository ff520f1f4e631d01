"""TensorBoard's event files, `events.out.tfevents.*`: one run per folder. Needs pip install -e '.[tensorboard]'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import RefusedError
from harness.shelves.imports.base import ImportedRun, ImportFormat
from harness.shelves.imports.formats.trl import BOOKKEEPING
from harness.shelves.imports.names import log


def _reads(source: str) -> bool:
    return "tfevents" in Path(source).name and Path(source).is_file()


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    """Read the files of one folder as one run, as TensorBoard does: a resumed run writes another file."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise RefusedError("shelves.imports.tensorboard_missing") from None
    runs = []
    # Reversed, so that each folder keeps its first source. The result is reversed back.
    for folder, source in {Path(source).parent: source for source in reversed(sources)}.items():
        # A size guidance of 0 keeps all points. By default TensorBoard keeps a sample of them.
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        run = ImportedRun(source, folder.name)
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                log(run, event.step, {name: event.value})
        if not run.steps and not run.scores:
            raise RefusedError("shelves.imports.no_scalar", source=source)
        runs.append(run)
    return runs[::-1]


TENSORBOARD = ImportFormat("tensorboard", "event files of TensorBoard, a run a folder", _reads, _read, BOOKKEEPING)
