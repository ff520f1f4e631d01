"""Where results are looked for, and which arm and seed they are of.

A source is a file, a folder that is searched for files of any format, or a pattern like
`runs/{arm}/seed{seed}/trainer_state.json`, whose `{arm}` and `{seed}` say what their path says of them.
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
    """What a path, or the name of a run, says: None for what it does not."""

    arm: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Pattern:
    """Text with `{arm}` and `{seed}` in it; `*` is anything but a slash, `**` and a final `...` are anything."""

    text: str

    def __post_init__(self) -> None:
        fields = _FIELD.findall(self.text)
        if not fields or len(fields) != len(set(fields)) or not {*fields} <= {*_PARTS}:
            raise RefusedError(
                f"{self.text!r} is no pattern: it must hold {{arm}}, {{seed}} or both, each once, and no other field, "
                "e.g. runs/{arm}/seed{seed}/trainer_state.json."
            )

    @property
    def as_glob(self) -> str:
        return _FIELD.sub("*", self.text.removesuffix("/..."))

    def names(self, text: str) -> Names | None:
        """What a text says that the pattern matches, or a path that lies below one; None if it does not match."""
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
    """The runs that some sources hold, with the arm and the seed that their paths say, and the formats in use.

    Raises RefusedError for a source that is not there or of no format, and as `ImportFormat.read`.
    """
    by_format: dict[str, list[str]] = {}
    said: dict[str, Names] = {}
    for text in texts:
        for source, names in _expanded(text, named_format):
            one = format_of(source, named_format) or _table_by_ending(source)
            if one is None:
                raise RefusedError(
                    f"{source}: is of no format that can be imported. `bench ls formats` shows what each reads; "
                    "--format names one."
                )
            by_format.setdefault(one.name, []).append(source)
            said[source] = names
    formats = [FORMATS.find(name) for name in by_format]
    runs = [run for one in formats for run in one.read([*dict.fromkeys(by_format[one.name])])]
    for run in runs:
        names = said.get(run.source, Names())
        run.arm = names.arm if run.arm is None else run.arm
        run.seed = names.seed if run.seed is None else run.seed
    return runs, formats


def _table_by_ending(source: str) -> ImportFormat | None:
    """Reads a named file as a table if no format knows its columns, so that the error says which are wrong."""
    return FORMATS.find("table") if Path(source).suffix.lower() in (".csv", ".jsonl", ".parquet") else None


def _expanded(text: str, named_format: str | None) -> Iterator[tuple[str, Names]]:
    """The files of a source, with what their paths say."""
    if is_pattern(text):
        pattern = Pattern(text)
        start = Path("/" if text.startswith("/") else ".")
        found = sorted(start.glob(pattern.as_glob.removeprefix("/")))
        matched = [(path, names) for path in found if (names := pattern.names(_as_given(path, start))) is not None]
        if not matched:
            raise RefusedError(f"{text}: matches no file. Each {{arm}} and {{seed}} stands for a part of one name.")
        for path, names in matched:
            yield from ((one, pattern.names(one) or names) for one in _files(_as_given(path, start), named_format))
    else:
        yield from ((one, Names()) for one in _files(text, named_format))


def _as_given(path: Path, start: Path) -> str:
    return str(path) if start.is_absolute() else str(path.relative_to(start))


def _files(text: str, named_format: str | None) -> Iterator[str]:
    """A file or an address itself; of a folder the files below it that are of a format."""
    path = Path(text)
    if not path.is_dir() or format_of(text) is not None:
        if not path.exists() and format_of(text) is None:
            raise RefusedError(f"{text}: is not there. Give a file, a folder, or a pattern with {{arm}} and {{seed}}.")
        yield text
        return
    below = sorted(str(one) for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
    found = [one for one in below if (of := format_of(one)) is not None and named_format in (None, of.name)]
    if not found:
        raise RefusedError(
            f"{text}: holds no file of a format that can be imported, among {len(below)} "
            f"({few([Path(one).name for one in below])}). `bench ls formats` shows what each reads."
        )
    yield from found


def settle_names(runs: Sequence[ImportedRun], pattern: Pattern | None, arm: str | None, seed: int | None) -> None:
    """Give every run its arm: what its columns or its path say, else what the pattern finds in its name, else `arm`,
    else its name. Seeds likewise, then what its settings call `seed`; None if nothing says one.

    Raises RefusedError if only some of them have a seed.
    """
    for run in runs:
        found = None if pattern is None else pattern.names(run.name)
        if pattern is not None and found is None:
            raise RefusedError(f"{run.source}: the run {run.name!r} does not match --runs {pattern.text}.")
        names = found or Names()
        run.arm = next(one for one in (run.arm, names.arm, arm, run.name) if one is not None)
        own = run.config.get("seed")
        candidates = (run.seed, names.seed, seed, own if type(own) is int and own >= 0 else None)
        run.seed = next((one for one in candidates if one is not None), None)
    without = [run for run in runs if run.seed is None]
    if without and len(without) < len(runs):
        raise RefusedError(
            f"{without[0].source}: no seed is known of {without[0].arm}, but of others one is. Say it by {{seed}} in "
            "the path, by a column, by --runs or by --seed."
        )
