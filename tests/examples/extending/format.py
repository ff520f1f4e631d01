"""A format of a tool that writes a line for each problem: `name verdict`, e.g. `p17 right`, into <run>.verdicts."""

from collections.abc import Sequence
from pathlib import Path

from harness.errors import RefusedError
from harness.shelves.imports.base import RESULTS, ImportedRun, ImportedSample, ImportFormat

VERDICTS = {"right": True, "wrong": False}


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    return [ImportedRun(source, Path(source).stem, samples=_samples(source)) for source in sources]


def _samples(source: str) -> list[ImportedSample]:
    samples = []
    for number, line in enumerate(Path(source).read_text().splitlines(), start=1):
        problem, _, verdict = line.partition(" ")
        if verdict not in VERDICTS:
            raise RefusedError(f"{source}, row {number}: is {line!r}, but must be a problem and right or wrong.")
        samples.append(ImportedSample(RESULTS, problem, 0, VERDICTS[verdict]))
    return samples


LAB = ImportFormat("lab", "<run>.verdicts of our lab", lambda source: source.endswith(".verdicts"), _read)
