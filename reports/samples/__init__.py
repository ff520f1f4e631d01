"""The page to read samples on: samples.html with its folder `samples`, for a sweep, a search or a `bench eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.processes import each_in_processes, process_count
from reports.samples.files import FIRST_SAMPLES, Place, collect, write_files
from reports.samples.reading import Extent, Share, measure_extent, read_samples, share

if TYPE_CHECKING:
    from harness.records import CellRecord, SweepRecord

MOST_SAMPLES = 60_000
MOST_TOKENS = 40_000_000
"""A page of long completions has fewer, so that its folder stays below about 200 MB."""
MOST_FILES = 800
"""Files of training that are read, over all cells."""
MOST_FORMULAS = 20_000
"""Translating one takes about a third of a millisecond. Those of further samples stay as the model wrote them."""


def write_sweep_samples(sweep: SweepRecord, out_dir: Path) -> None:
    """Write samples.html of a sweep or a search into the folder of its report, and its data into the folder `samples`.

    The finished cells are read. The same records give the same bytes. Raises DamagedRecordError.
    """
    done = {(cell.arm, cell.seed): cell for cell in sweep.cells if cell.state == "done"}
    content = {"page_title": f"{sweep.name}: samples", "title": sweep.name, "question": sweep.question}
    # A search has no baseline that its trials could be laid beside: any two can be.
    baseline = None if sweep.is_search else sweep.baseline
    _write(done, sweep.arms, baseline, content | {"report": "index.html"}, out_dir)


def write_evaluation_samples(task: str, seed: int, stores: Mapping[str, Path], out_dir: Path) -> Path:
    """Write samples.html of a `bench eval` on one task into a folder, and return its path.

    seed: of the samples' noise. stores: by the name of each model the folder of its samples; the first is the baseline
    if there are several. Raises DamagedRecordError.
    """
    from harness.records import CellRecord

    cells = {(name, seed): CellRecord(folder, name, seed, "") for name, folder in stores.items()}
    names = list(stores)
    content = {"page_title": f"{names[-1]} on {task}: samples", "title": names[-1], "question": f"Samples on {task}"}
    _write(cells, names, names[0] if len(names) > 1 else None, content | {"report": None}, out_dir)
    return out_dir / "samples.html"


def _write(
    cells: Mapping[Place, CellRecord],
    arms: Sequence[str],
    baseline: str | None,
    content: dict[str, Any],
    out_dir: Path,
) -> None:
    processes = process_count(len(cells))
    most_files = max(2, MOST_FILES // max(1, len(cells)))
    extents = each_in_processes(partial(measure_extent, most_files=most_files), list(cells.values()), processes)
    mean_tokens = max((one.mean_tokens for one in extents), default=0.0)
    shown = share(extents, min(MOST_SAMPLES, int(MOST_TOKENS / max(1.0, mean_tokens))))
    most_formulas = MOST_FORMULAS // max(1, len(cells))
    read = partial(read_samples, shown=shown, most_files=most_files, most_formulas=most_formulas)
    found = each_in_processes(read, list(cells.values()), processes)
    collection = collect(list(zip(cells, found, strict=True)), arms, baseline)
    without_prompt = sum(one.prompt < 0 for one in collection.listed)
    content |= {
        "n_shown": len(collection.listed),
        "n_first": min(FIRST_SAMPLES, len(collection.listed)),
        "shown_sentence": shown_sentence(extents, shown, len(collection.listed)),
        "without_prompt": without_prompt,
        "baseline": baseline,
    }
    write_files(collection, content, out_dir)


def shown_sentence(extents: Sequence[Extent], shown: Share, n_shown: int) -> str:
    """How many of the recorded samples are on the page, and which."""
    recorded = sum(one.total for one in extents)
    is_whole = all(one.is_whole for one in extents)
    if is_whole and n_shown == recorded:
        return f"All {n_shown:,} samples that were recorded."
    parts = [f"{shown.final:,} samples of its final evaluation, one of each problem before a second of any"]
    if shown.steps is None:
        parts.append("all completions of training" if is_whole else "completions of some steps of training")
    elif shown.steps:
        parts.append(
            f"the first {shown.per_step:,} completions of training in steps {', '.join(map(str, shown.steps))}"
        )
    parts.append(f"{shown.curve or 'none'} of the evaluations along training")
    total = f"{recorded:,}" if is_whole else f"more than {recorded:,}"
    return f"{n_shown:,} of {total} recorded samples. From each cell: {'; '.join(parts)}."
