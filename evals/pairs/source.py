"""Where preference pairs come from: a JSONL file, or a split of a data set on the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from evals.errors import DataMissingError, EvalError
from evals.pairs.layouts import Layout, layout_of, take_apart
from evals.pairs.pair import PreferencePair
from evals.row_sources import DATA_FOLDER_VARIABLE, Row, file_rows, hub_rows

SHOWN_FAULTS = 5
HUB = "hub:"
_HUB_ADDRESS = re.compile(r"hub:(?P<id>[^:@]+)(:(?P<config>[^:@]+))?@(?P<revision>[^:@]+)")


class PairSource(Protocol):
    """A fixed set of pairs."""

    @property
    def fingerprint(self) -> str:
        """Names the content without the network. Raises like `load` for a file."""

    def load(self) -> Sequence[PreferencePair]:
        """The pairs in the source's order.

        Raises DataMissingError if they cannot be had, EvalError that names the first faulty rows.
        """


def parse_pair_source(data: str, split: str) -> PairSource:
    """The source that `data` names.

    data: a JSONL file by its path (absolute, in the working directory, or in $BENCH_DATA: the first that is there), or
        `hub:<id>[:<config>]@<revision>` with a commit or a tag. split: of a data set on the hub; a file is `train`.

    Raises EvalError for a hub address without a revision, for a split of a file; DataMissingError for a missing file.
    """
    if data.startswith(HUB):
        address = _HUB_ADDRESS.fullmatch(data)
        if address is None or address["revision"] == "main":
            raise EvalError(
                f"the pairs {data}: what is on the hub can change under one name; pin it: "
                f"{HUB}<id>[:<config>]@<revision> with a commit or a tag"
            )
        return HubPairs(address["id"], address["config"], address["revision"], split)
    if split != "train":
        raise EvalError(
            f"the pairs {data} are a file, which has no split {split!r}; leave the split out, or at 'train'"
        )
    folders = [Path(), *([Path(os.environ[DATA_FOLDER_VARIABLE])] if os.environ.get(DATA_FOLDER_VARIABLE) else [])]
    for folder in folders:
        if (folder / data).is_file():
            return LocalPairs(folder / data)
    if Path(data).is_dir():
        raise DataMissingError(f"the pairs {data!r} are a folder; give the path of a JSONL file in it")
    looked = "$BENCH_DATA is not set" if len(folders) == 1 else f"nor is it in $BENCH_DATA ({folders[1]})"
    raise DataMissingError(
        f"no file {data} with pairs; {looked}. Give the path of a JSONL file, or {HUB}<id>@<revision>."
    )


@dataclass(frozen=True)
class LocalPairs:
    """Pairs in a JSONL file."""

    path: Path

    @property
    def fingerprint(self) -> str:
        status = self.path.stat()
        return _file_fingerprint(self.path, status.st_size, status.st_mtime_ns)

    def load(self) -> Sequence[PreferencePair]:
        return _read_pairs(file_rows(self.path), str(self.path), self.path.stem)


@dataclass(frozen=True)
class HubPairs:
    """Pairs in a split of a data set on the hub; `revision` is a commit or a tag."""

    id: str
    config: str | None
    revision: str
    split: str

    @property
    def fingerprint(self) -> str:
        return f"{HUB}{self.id}@{self.revision}/{self.config or 'default'}/{self.split}"

    def load(self) -> Sequence[PreferencePair]:
        name = self.fingerprint
        try:
            return _read_pairs(hub_rows(name, self.id, self.config, self.split, self.revision), name, self.id)
        except DataMissingError as error:
            raise DataMissingError(
                f"no pairs from {name}; allow access to the hub (network; HF_HUB_OFFLINE and HF_DATASETS_OFFLINE "
                f"unset), check id, config, split and revision, or give a JSONL file. The hub said: {error}"
            ) from error


def pairs_digest(pairs: Iterable[PreferencePair]) -> str:
    """`sha256:<hex>` of the (prompt, chosen, rejected) triples in order; ids and the file's layout do not count."""
    digest = hashlib.sha256()
    for pair in pairs:
        triple = json.dumps([pair.prompt, pair.chosen, pair.rejected], sort_keys=True, separators=(",", ":"))
        digest.update(triple.encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


@lru_cache(maxsize=8)
def _file_fingerprint(path: Path, size_bytes: int, modified_ns: int) -> str:
    """Every cell of a plan asks for it; size and time of change tell another content of the same file."""
    return f"pairs:{pairs_digest(LocalPairs(path).load())}"


def _read_pairs(rows: Iterable[tuple[str, Row]], origin: str, name: str) -> tuple[PreferencePair, ...]:
    """Pairs without an `id` are numbered, `<name>-00000`."""
    pairs: list[PreferencePair] = []
    faults: list[str] = []
    layout: Layout | None = None
    for number, (where, row) in enumerate(rows):
        layout = layout or layout_of(row)
        try:
            parts = take_apart(row, layout)
        except EvalError as error:
            faults.append(f"{where}: {error}")
            continue
        id = f"{name}-{number:05d}" if row.get("id") is None else str(row["id"])
        pairs.append(PreferencePair(id, *parts, where))
    if faults:
        more = len(faults) - SHOWN_FAULTS
        rest = [f"{more} more rows of {origin} are faulty"] if more > 0 else []
        raise EvalError("\n".join(faults[:SHOWN_FAULTS] + rest))
    if not pairs:
        raise EvalError(f"{origin} holds no pairs; a row has `prompt`, `chosen` and `rejected`")
    return tuple(pairs)
