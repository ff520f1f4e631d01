"""verl's console log (`trainer.logger=['console']`): a line `step:N - name:value - ...` per step, and the settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.errors import RefusedError, shown
from harness.settings import dotted
from harness.shelves.imports.base import ImportedRun, ImportFormat, beginning
from harness.shelves.imports.names import log, score_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BEFORE_PROCESS = re.compile(r"(?:\x1b\[\d+m)+(?=\([^)\n]*pid=\d+[^)\n]*\))")
"""Where Ray begins a process's line, in colour. Lines of several processes may run together."""
_PROCESS = re.compile(r"^\((?P<process>[^)]*pid=\d+[^)]*)\) ?")
_OF_NUMPY = re.compile(r"\bnp\.\w+\(([^()]*)\)")
"""Numbers as NumPy 2 prints them: `np.float64(0.5)`."""
_NOT_FINITE = re.compile(r"(?<=: )-?(?:nan|inf)\b")
_STEP = re.compile(r"^step:(?P<step>\d+) - (?P<pairs>.+)$")
_PAIR = re.compile(r"^(?P<name>.+?):(?P<value>-?(?:[\d.]+(?:e[+-]?\d+)?|nan|inf))$", re.IGNORECASE)
_AROUND_TRAINING = re.compile(r"^\"?(?P<which>Initial|Final) validation metrics: (?P<scores>\{.*\})\"?$")
BOOKKEEPING = frozenset({"experiment_name", "project_name", "default_local_dir", "default_hdfs_dir", "logger", "seed"})


def _reads(source: str) -> bool:
    if Path(source).suffix not in (".log", ".txt", ".out"):
        return False
    first = beginning(source, 1 << 20)
    return b"actor_rollout_ref" in first or (b"step:" in first and b"actor/" in first)


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    return [_run(source) for source in sources]


def _run(source: str) -> ImportedRun:
    run, lines = ImportedRun(source, Path(source).stem), _lines(source)
    rows = [(int(found["step"]), _values(found["pairs"])) for _, line in lines if (found := _STEP.match(line))]
    if not rows:
        raise RefusedError("shelves.imports.not_a_verl_log", source=source)
    # verl up to version 0.2 counts steps from 0. A row of scores alone carries the number of updates before it in all
    # versions.
    trained = [step for step, values in rows if any(score_of(name) is None for name in values)]
    first = 1 if trained and trained[0] == 0 else 0
    for step, values in rows:
        log(run, step + first * any(score_of(name) is None for name in values), values)
    for _, line in lines:
        if found := _AROUND_TRAINING.match(line):
            step = 0 if found["which"] == "Initial" else max(run.steps, default=0)
            scores = _scores(source, found["scores"])
            # The row of the same step has rounded values; these exact ones replace them.
            run.scores = [one for one in run.scores if one.step != step]
            log(run, step, scores)
    run.config = dotted(_settings(lines))
    return run


def _scores(source: str, text: str) -> dict[str, object]:
    """Parse the scores before or after training, which verl prints as a dict.

    Values that are not finite become None.
    """
    try:
        # literal_eval knows neither nan nor inf.
        scores = ast.literal_eval(_NOT_FINITE.sub("None", text.replace("\\'", "'")))
    except (ValueError, SyntaxError):
        scores = None
    if not isinstance(scores, dict):
        raise RefusedError("shelves.imports.verl_line_unreadable", source=source, text=shown(text))
    return scores


def _lines(source: str) -> list[tuple[str, str]]:
    """Return the lines as (process, text), without colours and NumPy types.

    Ray names the process before the text; "" if it names none.
    """
    text = Path(source).read_bytes().decode("utf-8", errors="replace")
    text = _OF_NUMPY.sub(r"\1", _COLOUR.sub("", _BEFORE_PROCESS.sub("\n", text)))
    found = ((_PROCESS.match(line), line) for line in text.splitlines())
    return [("" if who is None else who["process"], line if who is None else line[who.end() :]) for who, line in found]


def _values(pairs: str) -> dict[str, float]:
    found = map(_PAIR.match, pairs.split(" - "))
    return {pair["name"]: float(pair["value"]) for pair in found if pair is not None}


def _settings(lines: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Parse the settings that verl prints with `pprint` at its start; {} if the log has none."""
    process, written = None, ""
    for who, line in lines:
        if process is None and line.lstrip().startswith("{'actor_rollout_ref'"):
            process = who
        # Lines of other processes may come between those of the dict.
        if process != who:
            continue
        written += line + "\n"
        if line.rstrip().endswith("}") and written.count("{") == written.count("}"):
            try:
                settings = ast.literal_eval(written.strip())
            except (ValueError, SyntaxError):
                return {}
            return settings if isinstance(settings, dict) else {}
    return {}


VERL = ImportFormat("verl", "a console log of verl", _reads, _read, BOOKKEEPING)
