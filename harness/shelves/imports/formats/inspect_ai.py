"""inspect_ai's `.eval` logs: a zip of JSON with header.json and one file per sample and epoch (log version 2)."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import RefusedError
from harness.records.scores import content_of
from harness.settings import dotted
from harness.shelves.imports.base import ImportedRun, ImportedSample, ImportFormat, Score, beginning, finite
from harness.shelves.imports.names import metric_name

_ZSTANDARD = 93
"""The compression method that Python's zipfile supports from 3.14 on."""
_VERDICTS: dict[object, bool] = {"C": True, "I": False, "N": False, 1: True, 0: False}
"""CORRECT, INCORRECT and NOANSWER, also as numbers. Partial credit is none of them."""


def _reads(source: str) -> bool:
    # A truncated file is read too, so that it is refused and not ignored.
    return Path(source).suffix == ".eval" and beginning(source, 2) == b"PK"


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    runs = []
    for source in sources:
        try:
            runs.append(_run(source))
        except (KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise RefusedError(
                "shelves.imports.not_an_inspect_log", source=source, error_type=type(error).__name__, error=error
            ) from None
    return runs


def _run(source: str) -> ImportedRun:
    with zipfile.ZipFile(source) as log:
        if "header.json" not in log.namelist():
            raise RefusedError("shelves.imports.inspect_interrupted", source=source)
        header = _document(source, log, "header.json")
        if header.get("status") != "success":
            raise RefusedError("shelves.imports.inspect_not_done", source=source, status=header.get("status"))
        names = sorted(name for name in log.namelist() if name.startswith("samples/"))
        samples = [_document(source, log, name) for name in names]
    evaluation = header["eval"]
    run, task = ImportedRun(source, str(evaluation["model"])), str(evaluation["task"])
    scorer = next((score["name"] for score in header["results"]["scores"]), "")
    for score in header["results"]["scores"]:
        values = ((name, metric.get("value")) for name, metric in score["metrics"].items() if name != "stderr")
        before = "" if score["name"] == scorer else f"{score['name']}/"
        # Any reducer but the mean makes another metric of a problem's epochs; `mode` is a majority vote.
        after = "" if score.get("reducer") in (None, "mean") else f"/{score['reducer']}"
        run.scores += [
            Score(task, metric_name(f"{before}{name}{after}"), value) for name, value in finite(values).items()
        ]
    verdicts = [_verdict(sample, scorer) for sample in samples]
    if all(verdict is not None for verdict in verdicts):  # else scores are partial, and only their means are known
        run.samples = [
            _sample(source, task, sample, bool(verdict), scorer)
            for sample, verdict in zip(samples, verdicts, strict=True)
        ]
    conditions = {name: (header.get("plan") or {}).get("config", {}).get(name) for name in _GENERATION}
    steps = [step.get("solver") for step in (header.get("plan") or {}).get("steps", [])]
    run.config = dotted({"solvers": steps, "scorer": scorer, "dataset": evaluation["dataset"].get("name")}, "eval.")
    run.config |= dotted(conditions | {"task_args": evaluation.get("task_args")}, "eval.")
    return run


_GENERATION = ("temperature", "top_p", "top_k", "max_tokens", "seed", "reasoning_effort", "system_message")


def _document(source: str, log: zipfile.ZipFile, name: str) -> Mapping[str, Any]:
    """Read one JSON object of the log. Raises RefusedError if it is another JSON value."""
    entry = log.getinfo(name)
    if entry.compress_type != _ZSTANDARD:
        document = json.loads(log.read(entry))
    else:
        import pyarrow

        with Path(source).open("rb") as handle:
            handle.seek(
                entry.header_offset + 26
            )  # the lengths of the name and of the extra field, behind which data begin
            lengths = handle.read(4)
            handle.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
            content = handle.read(entry.compress_size)
        try:
            text = pyarrow.decompress(content, entry.file_size, codec="zstd", asbytes=True)
        except OSError as error:
            raise zipfile.BadZipFile(f"{name}: {error}") from None
        document = json.loads(text)
    if not isinstance(document, dict):
        raise RefusedError("shelves.imports.inspect_entry_not_an_object", source=source, entry=name)
    return document


def _verdict(sample: Mapping[str, Any], scorer: str) -> bool | None:
    value = ((sample.get("scores") or {}).get(scorer) or {}).get("value")
    return _VERDICTS.get(value) if isinstance(value, str | int | float) else None


def _sample(source: str, task: str, sample: Mapping[str, Any], correct: bool, scorer: str) -> ImportedSample:
    output = sample.get("output") or {}
    choices, usage = output.get("choices") or [{}], output.get("usage") or {}
    extracted = sample["scores"][scorer].get("answer")
    return ImportedSample(
        task=task,
        problem_id=str(sample["id"]),
        # Epochs count from 1.
        sample=int(sample["epoch"]) - 1,
        correct=correct,
        n_tokens=usage.get("output_tokens"),
        truncated=None if "stop_reason" not in choices[0] else choices[0]["stop_reason"] == "max_tokens",
        text=output.get("completion"),
        extracted=extracted if isinstance(extracted, str) else None,
        prompt=sample["input"] if isinstance(sample["input"], str) else json.dumps(sample["input"]),
        answer=sample["target"] if isinstance(sample["target"], str) else json.dumps(sample["target"]),
        content=content_of(_question(sample["input"]), sample.get("choices"), sample["target"]),
    )


def _question(given: str | list[dict[str, object]]) -> object:
    """Return the input as in the data set, before solvers add to it.

    Messages are reduced to role and content, since their ids are random.
    """
    return given if isinstance(given, str) else [[message.get("role"), message.get("content")] for message in given]


INSPECT_AI = ImportFormat("inspect_ai", "<time>_<task>_<id>.eval, a log of inspect_ai", _reads, _read)
