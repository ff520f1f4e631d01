"""The page for reading samples of a sweep, a search or a `bench eval`: samples.html with its folder `samples`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.records.rollouts import spread
from harness.words import said
from reports.processes import give_back_memory
from reports.samples.files import Place, collect, write_files
from reports.samples.reading import CellSamples, are_final, read_lm_eval, read_samples, steps_of

if TYPE_CHECKING:
    from harness.records import CellRecord, SweepRecord

MOST_SAMPLES = 60_000
MOST_TOKENS = 40_000_000
"""The most tokens of evaluation samples, which keeps the folder of long completions below about 200 MB."""
MOST_FILES = 800
"""The most rollout files to read, over all cells."""
TRAINING_STEPS = 8
"""If the page cannot hold all samples, it shows those of this many steps, spread over training."""
MOST_FORMULAS = 20_000
"""The most formulas to translate, at a third of a millisecond each. Others stay as the model wrote them."""


@dataclass(frozen=True)
class RecordedSamples:
    """The number of samples that a cell recorded, by kind."""

    final: int
    curve: int
    training: dict[int, int]
    """The number by step, in order."""
    is_whole: bool = True
    """True if all files were counted."""
    mean_tokens: float = 0.0
    """The mean length of evaluation samples, in tokens; 0 if unknown."""

    @property
    def n_training(self) -> int:
        return sum(self.training.values())

    @property
    def total(self) -> int:
        return self.final + self.curve + self.n_training


@dataclass(frozen=True)
class SampleQuota:
    """The most samples of each kind that a page shows per cell."""

    final: int
    curve: int
    steps: tuple[int, ...] | None = None
    """The training steps to show; None to show all completions of all steps."""
    per_step: int = 0
    """The number of completions to show per step."""


def write_sweep_samples(sweep: SweepRecord, out_dir: Path) -> None:
    """Write samples.html of a sweep or a search into its report's folder, and its data into the folder `samples`.

    Only finished cells are read. The same records give byte-identical files. Raises DamagedRecordError.
    """
    done = {(cell.arm, cell.seed): cell for cell in sweep.cells if cell.state == "done"}
    titles = {"page_title": f"{sweep.name}: samples", "title": sweep.name}
    # The trials of a search have no baseline. The reader may compare any two.
    baseline = None if sweep.is_search else sweep.baseline
    _write(done, sweep.arms, baseline, {**titles, "question": sweep.question, "report": "index.html"}, out_dir)
    give_back_memory()


def write_evaluation_samples(task: str, seed: int, stores: Mapping[str, Path], out_dir: Path) -> Path:
    """Write samples.html of a `bench eval` on one task into a folder, and return its path.

    seed: the seed of the samples.
    stores: the folder of each model's samples, by model name. If there are several, the first model is the baseline.
    Raises DamagedRecordError.
    """
    from harness.records import CellRecord

    cells = {(name, seed): CellRecord(folder, name, seed, "") for name, folder in stores.items()}
    names = list(stores)
    _write(cells, names, _baseline_of(names), _content_of_evaluation(names, task), out_dir)
    return out_dir / "samples.html"


def write_lm_eval_samples(seed: int, folders: Mapping[str, Path], out_dir: Path) -> Path:
    """Write the page of all lm-eval tasks that `bench eval` ran on these models, and return its path.

    folders: by model name, the folder that contains its `<task>.json` files. The rest is as in
    `write_evaluation_samples`.
    """
    names = list(folders)
    most = MOST_SAMPLES // len(names)
    found = [read_lm_eval(folder, most, MOST_FORMULAS // len(names)) for folder in folders.values()]
    cells = {(name, seed): one for name, one in zip(names, found, strict=True)}
    sentence = said("reports.all_documents_were_recorded", found=sum(len(one.samples) for one in found))
    # A model with exactly this many documents looks like one with more, so use the cautious sentence.
    if any(len(one.samples) == most for one in found):
        sentence = said("reports.first_documents_each_model", most=most)
    _write_page(cells, names, _baseline_of(names), _content_of_evaluation(names, "lm-eval's tasks"), sentence, out_dir)
    return out_dir / "samples.html"


def _baseline_of(models: Sequence[str]) -> str | None:
    return models[0] if len(models) > 1 else None


def _content_of_evaluation(models: Sequence[str], tasks: str) -> dict[str, object]:
    titles = {"page_title": f"{models[-1]} on {tasks}: samples", "title": models[-1]}
    return {**titles, "question": f"Samples on {tasks}", "report": None}


def _write(
    cells: Mapping[Place, CellRecord],
    arms: Sequence[str],
    baseline: str | None,
    content: dict[str, object],
    out_dir: Path,
) -> None:
    # All bounds apply to the whole page, so each cell gets an equal part.
    most_files = max(2, MOST_FILES // max(1, len(cells)))
    extents = [measure_extent(cell, most_files) for cell in cells.values()]
    mean_tokens = max((one.mean_tokens for one in extents), default=0.0)
    shown = share(extents, min(MOST_SAMPLES, int(MOST_TOKENS / max(1.0, mean_tokens))))
    most_formulas = MOST_FORMULAS // max(1, len(cells))
    found = {place: read_samples(cell, shown, most_files, most_formulas) for place, cell in cells.items()}
    sentence = shown_sentence(extents, shown, sum(len(one.samples) for one in found.values()))
    _write_page(found, arms, baseline, content, sentence, out_dir)


def _write_page(
    cells: Mapping[Place, CellSamples],
    arms: Sequence[str],
    baseline: str | None,
    content: dict[str, object],
    sentence: str,
    out_dir: Path,
) -> None:
    collection = collect(list(cells.items()), arms, baseline)
    write_files(collection, content | {"shown_sentence": sentence, "baseline": baseline}, out_dir)


def measure_extent(cell: CellRecord, most_files: int) -> RecordedSamples:
    """Count the samples that a cell recorded. Raises DamagedRecordError.

    most_files: the most rollout files to read. If there are more, only some are read, spread over training.
    """
    import pyarrow.compute as pc

    table = cell.read_evals(["sample", "final", "n_tokens"])
    finals = are_final(table)
    paths = cell.rollout_files()
    # np.concatenate rejects an empty list, and a cell may have no files.
    steps = np.concatenate([np.zeros(0, dtype=int), *map(steps_of, spread(paths, most_files))])
    numbers, counts = np.unique(steps, return_counts=True)
    n_final = int(finals.sum())
    mean_tokens = None if table is None or "n_tokens" not in table.column_names else pc.mean(table["n_tokens"]).as_py()
    return RecordedSamples(
        final=n_final,
        curve=len(finals) - n_final,
        training=dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
        is_whole=len(paths) <= most_files,
        mean_tokens=mean_tokens or 0.0,
    )


def share(extents: Sequence[RecordedSamples], most: int) -> SampleQuota:
    """Divide at most `most` samples among the cells.

    All cells get the same quota, so that arms can be compared sample by sample. The final evaluation and training have
    priority and share the quota; evaluations during training get the rest.
    """
    n_final = max((one.final for one in extents), default=0)
    n_curve = max((one.curve for one in extents), default=0)
    n_training = max((one.n_training for one in extents), default=0)
    room = most // max(1, len(extents))
    # The final evaluation may take half of the quota, and whatever training leaves of the other half.
    final = min(n_final, max(room // 2, room - n_training))
    curve = max(0, min(n_curve, room - final - n_training))
    if n_training <= room - final:
        return SampleQuota(final, curve)
    # Only steps that every trained cell recorded can be compared.
    common = sorted(set.intersection(*(set(one.training) for one in extents if one.training)))
    chosen = np.unique(np.linspace(0, len(common) - 1, min(len(common), TRAINING_STEPS)).round().astype(int))
    return SampleQuota(final, curve, tuple(common[place] for place in chosen), (room - final) // max(1, len(chosen)))


def shown_sentence(extents: Sequence[RecordedSamples], shown: SampleQuota, n_shown: int) -> str:
    """Say which of the recorded samples are on the page, and how many."""
    recorded = sum(one.total for one in extents)
    is_whole = all(one.is_whole for one in extents)
    if is_whole and n_shown == recorded:
        return said("reports.all_samples_were_recorded", n_shown=n_shown)
    parts = [said("reports.samples_its_final_evaluation", final=shown.final)]
    if shown.steps is None:
        parts.append("all completions of training" if is_whole else said("reports.completions_some_steps_training"))
    elif shown.steps:
        parts.append(
            said(
                "reports.first_completions_training_steps",
                per_step=shown.per_step,
                steps=", ".join(map(str, shown.steps)),
            )
        )
    parts.append(said("reports.evaluations_along_training", curve=shown.curve or "none"))
    total = f"{recorded:,}" if is_whole else f"more than {recorded:,}"
    return said("reports.recorded_samples_from_each", n_shown=n_shown, total=total, parts="; ".join(parts))
