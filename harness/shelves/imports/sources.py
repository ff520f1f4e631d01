"""Finds the files to import, and the arm and the seed that each belongs to.

A source is a file, a folder that is searched for files of any format, or a pattern. In a pattern like
`runs/{arm}/seed{seed}/trainer_state.json`, `{arm}` and `{seed}` match the arm and the seed in a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RefusedError, few
from harness.shelves.imports.base import FORMATS, ImportedRun, ImportFormat, format_of

_FIELD = re.compile(r"\{(\w*)\}")
_PARTS = {"arm": r"(?P<arm>[^/]+?)", "seed": r"(?P<seed>\d+)"}


@dataclass(frozen=True)
class Names:
    """The arm and the seed in a path or in the name of a run; None if missing."""

    arm: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Pattern:
    """Text with `{arm}` and `{seed}` in it. `*` matches anything but a slash; `**` and a final `...` match anything."""

    text: str

    def __post_init__(self) -> None:
        fields = _FIELD.findall(self.text)
        if not fields or len(fields) != len(set(fields)) or not {*fields} <= {*_PARTS}:
            raise RefusedError("shelves.imports.not_a_pattern", text=self.text)

    @property
    def as_glob(self) -> str:
        return _FIELD.sub("*", self.text.removesuffix("/..."))

    def names(self, text: str) -> Names | None:
        """Return the arm and the seed in a text that matches, or in a path below one that matches; otherwise None."""
        found = re.fullmatch(f"{self._regex}(?:/.*)?", text)
        if found is None:
            return None
        said = found.groupdict()
        return Names(said.get("arm"), int(said["seed"]) if "seed" in said else None)

    @property
    def _regex(self) -> str:
        words = re.split(r"(\{\w+\}|\*\*/?|\*)", self.text.removesuffix("/..."))
        return "".join(_regex_of(word) for word in words)


def _regex_of(word: str) -> str:
    if field := _FIELD.fullmatch(word):
        return _PARTS[field[1]]
    return {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}.get(word, re.escape(word))


def is_pattern(text: str) -> bool:
    return "{" in text


def read_sources(texts: Sequence[str], named_format: str | None = None) -> tuple[list[ImportedRun], list[ImportFormat]]:
    """Read the runs of some sources, with the arm and the seed from their paths, and return the formats in use too.

    Raises RefusedError for a source that is missing or of no format, and as `ImportFormat.read`.
    """
    by_format: dict[str, list[str]] = {}
    said: dict[str, Names] = {}
    for text in texts:
        for source, names in _expanded(text, named_format):
            one = format_of(source, named_format) or _table_by_ending(source)
            if one is None:
                raise RefusedError("shelves.imports.unknown_format", source=source)
            by_format.setdefault(one.name, []).append(source)
            said[source] = names
    formats = [FORMATS.find(name) for name in by_format]
    # All sources of a format are read together, since one run may span several files.
    runs = [run for one in formats for run in one.read([*dict.fromkeys(by_format[one.name])])]
    for run in runs:
        names = said.get(run.source, Names())
        run.arm = names.arm if run.arm is None else run.arm
        run.seed = names.seed if run.seed is None else run.seed
    return runs, formats


def _table_by_ending(source: str) -> ImportFormat | None:
    """Return the table format for a file whose columns no format knows, so that the error says which are wrong."""
    return FORMATS.find("table") if Path(source).suffix.lower() in (".csv", ".jsonl", ".parquet") else None


def _expanded(text: str, named_format: str | None) -> Iterator[tuple[str, Names]]:
    """Yield the files of a source, with the names in their paths. Raises RefusedError if a pattern matches nothing."""
    if is_pattern(text):
        pattern = Pattern(text)
        start = Path("/" if text.startswith("/") else ".")
        found = sorted(start.glob(pattern.as_glob.removeprefix("/")))
        matched = [(path, names) for path in found if (names := pattern.names(_as_given(path, start))) is not None]
        if not matched:
            raise RefusedError("shelves.imports.pattern_matches_nothing", text=text)
        for path, names in matched:
            yield from ((one, pattern.names(one) or names) for one in _files(_as_given(path, start), named_format))
    else:
        yield from ((one, Names()) for one in _files(text, named_format))


def _as_given(path: Path, start: Path) -> str:
    return str(path) if start.is_absolute() else str(path.relative_to(start))


def _files(text: str, named_format: str | None) -> Iterator[str]:
    """Yield a file or an address itself, or the files of a known format below a folder.

    Raises RefusedError if the path is missing, or if the folder has no such file.
    """
    path = Path(text)
    if not path.is_dir() or format_of(text) is not None:
        if not path.exists() and format_of(text) is None:
            raise RefusedError("shelves.imports.source_missing", text=text)
        yield text
        return
    below = sorted(str(one) for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
    found = [one for one in below if (of := format_of(one)) is not None and named_format in (None, of.name)]
    if not found:
        raise RefusedError(
            "shelves.imports.folder_without_sources",
            text=text,
            n_files=len(below),
            files=few([Path(one).name for one in below]),
        )
    yield from found


def settle_names(runs: Sequence[ImportedRun], pattern: Pattern | None, arm: str | None, seed: int | None) -> None:
    """Give every run its arm and its seed.

    The arm comes from its columns or path, else from its name by the pattern, else from `arm`, else it is the run's
    name. The seed likewise, but last comes `seed` in its settings; it is None if nothing says one. Raises RefusedError
    if only some runs have a seed, or if a run's name does not match the pattern.
    """
    for run in runs:
        found = None if pattern is None else pattern.names(run.name)
        if pattern is not None and found is None:
            raise RefusedError(
                "shelves.imports.name_does_not_match", source=run.source, run=run.name, text=pattern.text
            )
        names = found or Names()
        run.arm = next(one for one in (run.arm, names.arm, arm, run.name) if one is not None)
        # `type` and not isinstance below: True is an int too.
        own = run.config.get("seed")
        candidates = (run.seed, names.seed, seed, own if type(own) is int and own >= 0 else None)
        run.seed = next((one for one in candidates if one is not None), None)
    without = [run for run in runs if run.seed is None]
    if without and len(without) < len(runs):
        raise RefusedError("shelves.imports.seed_unknown", source=without[0].source, arm=without[0].arm)
