"""The fence around a leased folder: late writes of an owner that was taken for dead do not arrive.

An owner can be suspended at any instruction, so a check before a write proves nothing about the moment of the write.
Instead every write begins in a directory of the owner's own, `.writes-<owner>`, and ends with a rename out of it or
into it. Whoever takes the folder over first moves that directory away, and then each of these renames fails in the file
system itself.

* A file or folder is filled in the directory and renamed into place.
* What is removed is first renamed into the directory.
* What makes room for its successor is kept there under its path, so that the next owner can put it back.

Rows that are appended cannot be renamed. They are written at once, after a look at the directory, and carry the epoch
of their writer: readers drop a row that a later start has written again.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

_PREFIX = ".writes-"
_DISPLACED = ".was"
_owned: dict[Path, Path] = {}
"""Maps each folder that this process owns to the directory in which its writes begin."""


class LeaseLostError(Exception):
    """This process was taken for dead, and another one now owns its folder."""


def directory_of(folder: Path, owner: str) -> Path:
    """Return the directory in which this owner's writes begin."""
    return folder / f"{_PREFIX}{owner}"


@contextmanager
def fenced(folder: Path, directory: Path) -> Iterator[None]:
    """Shut out every earlier owner of a folder, and let this process write there during the block.

    directory: must exist before the lease is visible, so that whoever takes over from this process finds it.
    """
    for earlier in folder.glob(f"{_PREFIX}*"):
        if earlier != directory:
            with suppress(FileNotFoundError):  # this process was shut out itself, or another one was quicker
                _shut(folder, earlier.rename(directory / earlier.name))
    # Callers may name the folder by a path through a link, so both forms are registered.
    keys = {folder.absolute(), folder.resolve()}
    _owned.update(dict.fromkeys(keys, directory))
    try:
        yield
    finally:
        for key in keys:
            _owned.pop(key, None)
        shutil.rmtree(directory, ignore_errors=True)


def _shut(folder: Path, moved: Path) -> None:
    """Restore what a killed owner displaced without a successor, and delete the rest."""
    for displaced in [*moved.rglob(f"*{_DISPLACED}")]:
        path = folder / unquote(displaced.name.removesuffix(_DISPLACED))
        if not path.exists():
            with suppress(FileNotFoundError):  # this process was shut out itself
                displaced.rename(path)
    shutil.rmtree(moved, ignore_errors=True)


def aside_of(path: Path) -> Path:
    """Return an unused path to fill before it is renamed to `path`.

    If this process owns the folder, the path lies in the owner's directory, else next to `path`.
    """
    found = _directory_over(path)
    name = f".{path.name}.{uuid.uuid4().hex[:12]}.tmp"  # containers may have equal process numbers
    return path.with_name(name) if found is None else found[1] / name


def displaced_of(path: Path) -> Path:
    """Return where `path` is kept until its successor has taken its place."""
    found = _directory_over(path)
    if found is None:
        return path.parent / f".{path.name}{_DISPLACED}"
    folder, directory = found
    # The quoted name holds the whole path, from which `_shut` can restore it without any other record.
    return directory / f"{quote(str(path.absolute().relative_to(folder)), safe='')}{_DISPLACED}"


def is_owned(path: Path) -> bool:
    """Return whether this process took out a lease on a folder that holds `path`; it may have been lost since."""
    return _directory_over(path) is not None


def require_owned(path: Path) -> None:
    """Raise LeaseLostError if another process has taken over a folder that this one owned and that holds `path`."""
    found = _directory_over(path)
    if found is not None and not found[1].is_dir():
        raise LeaseLostError(
            f"{found[0].name} was taken over by another process, since this one sent no heartbeat; its work since then "
            "does not count."
        )


def _directory_over(path: Path) -> tuple[Path, Path] | None:
    """Return the innermost owned folder that holds `path`, and its directory."""
    if not _owned:
        return None
    path = path.absolute()
    return next(((folder, _owned[folder]) for folder in path.parents if folder in _owned), None)


def remove(path: Path) -> None:
    """Remove a file or a folder atomically for other readers; do nothing if it is missing.

    Raises LeaseLostError as `require_owned`.
    """
    # The rename is the fenced operation: a lost lease makes it fail, and no reader sees a half-deleted folder.
    aside = aside_of(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        require_owned(path)
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)


def move(path: Path, target: Path) -> None:
    """Rename a file or a folder. Raises LeaseLostError as `require_owned`."""
    displaced = displaced_of(path)
    try:
        # Two renames, since only one through the owner's directory fails once the lease is lost.
        path.rename(displaced)
        displaced.rename(target)
    except FileNotFoundError:
        require_owned(path)
        raise


def restore(path: Path) -> None:
    """Put a folder back that a killed process displaced without bringing its successor; delete it if it did."""
    displaced = displaced_of(path)
    if path.exists():
        shutil.rmtree(displaced, ignore_errors=True)
    elif displaced.exists():
        with suppress(OSError):  # another process was quicker
            displaced.rename(path)
