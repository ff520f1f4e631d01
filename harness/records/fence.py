"""The fence around a leased folder: it blocks late writes of an owner that was taken for dead.

A process can be suspended between any two instructions, so a check before a write does not protect the write. Instead
every write begins in a directory that belongs to the owner, `.writes-<owner>`, and ends with a rename out of or into
that directory. A new owner first moves the earlier owner's directory away. From then on the file system itself rejects
each of the earlier owner's renames.

* A new file or folder is filled in the directory and then renamed into place.
* A file or folder to remove is first renamed into the directory.
* A file or folder to replace is kept there under its quoted path, so that the next owner can restore it.

Rows cannot be appended by a rename. They are written at once, after a check that the directory still exists, and carry
the epoch of the start that wrote them. Readers drop a row that a later start has written again.
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

    directory: this owner's directory. It must exist before the lease is visible, so that the next owner finds it.
    """
    for earlier in folder.glob(f"{_PREFIX}*"):
        if earlier != directory:
            with suppress(FileNotFoundError):  # this process was shut out itself, or another one was quicker
                _shut(folder, earlier.rename(directory / earlier.name))
    # Callers may name the folder by a path with a symbolic link, so both forms are registered.
    keys = {folder.absolute(), folder.resolve()}
    _owned.update(dict.fromkeys(keys, directory))
    try:
        yield
    finally:
        for key in keys:
            _owned.pop(key, None)
        shutil.rmtree(directory, ignore_errors=True)


def _shut(folder: Path, moved: Path) -> None:
    """Restore what a killed owner displaced but did not replace, and delete the rest."""
    for displaced in [*moved.rglob(f"*{_DISPLACED}")]:
        path = folder / unquote(displaced.name.removesuffix(_DISPLACED))
        if not path.exists():
            with suppress(FileNotFoundError):  # this process was shut out itself
                displaced.rename(path)
    shutil.rmtree(moved, ignore_errors=True)


def aside_of(path: Path) -> Path:
    """Return an unused path, to be filled and then renamed to `path`.

    It lies in the owner's directory if this process owns the folder, otherwise next to `path`.
    """
    found = _directory_over(path)
    name = f".{path.name}.{uuid.uuid4().hex[:12]}.tmp"  # containers may have equal process numbers
    return path.with_name(name) if found is None else found[1] / name


def displaced_of(path: Path) -> Path:
    """Return the path at which the present `path` is kept until its replacement is in place."""
    found = _directory_over(path)
    if found is None:
        return path.parent / f".{path.name}{_DISPLACED}"
    folder, directory = found
    # The name is the quoted path, so that `_shut` can restore the file without any other record.
    return directory / f"{quote(str(path.absolute().relative_to(folder)), safe='')}{_DISPLACED}"


def is_owned(path: Path) -> bool:
    """Return whether this process took a lease on a folder that contains `path`. It may have lost the lease since."""
    return _directory_over(path) is not None


def require_owned(path: Path) -> None:
    """Raise LeaseLostError if another process has taken over the folder of this process that contains `path`."""
    found = _directory_over(path)
    if found is not None and not found[1].is_dir():
        raise LeaseLostError(
            f"{found[0].name} was taken over by another process, since this one sent no heartbeat; its work since then "
            "does not count."
        )


def _directory_over(path: Path) -> tuple[Path, Path] | None:
    """Return the innermost folder that contains `path` and that this process took, with its owner's directory."""
    if not _owned:
        return None
    path = path.absolute()
    return next(((folder, _owned[folder]) for folder in path.parents if folder in _owned), None)


def remove(path: Path) -> None:
    """Remove a file or folder so that no reader sees it half deleted; do nothing if it is missing.

    Raises as `require_owned`.
    """
    # The rename is the fenced step. If the lease is lost, it fails.
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
    """Rename a file or a folder. Raises as `require_owned`."""
    displaced = displaced_of(path)
    try:
        # There are two renames, because only a rename through the owner's directory fails once the lease is lost.
        path.rename(displaced)
        displaced.rename(target)
    except FileNotFoundError:
        require_owned(path)
        raise


def restore(path: Path) -> None:
    """Finish an interrupted replacement: restore the displaced version if `path` is missing, else delete it."""
    displaced = displaced_of(path)
    if path.exists():
        shutil.rmtree(displaced, ignore_errors=True)
    elif displaced.exists():
        with suppress(OSError):  # another process was quicker
            displaced.rename(path)
