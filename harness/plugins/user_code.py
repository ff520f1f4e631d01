"""The user's own code: where a module is found, which files it imports, and whether these have changed.

A module that a sweep names is searched for in the sweep file's folder, then in the current folder, then among the
installed packages. Its closure consists of the module and every file in those folders that it imports, directly or
indirectly. For an installed module, only files of its own package count. Python may import only the closure from these
folders, so a stray `reports/` next to the sweep file shadows nothing. The closure's digest identifies the code that
ran.

Imports are read from the source; nothing is executed to find them. An import by a computed name, or through a package's
`*`, is not found, and therefore cannot be imported from those folders.

Code in the folder of a run is executed only if it is trusted. Such a folder may come from anyone, so its content cannot
prove who wrote it. A ledger in the user's own state folder contains a digest of all code that this user's runs have
recorded. Code is trusted if it is identical, byte for byte, to code that this user has run, if it is in the current
folder, or if `--trust-code` is given.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from harness import OUR_PACKAGES
from harness.errors import RefusedError


@dataclass(frozen=True)
class UserModule:
    """A module with its closure, in the state in which the files were found."""

    name: str
    files: Mapping[str, Path]
    """Maps the dotted name of every module of the closure, including the module itself, to its path."""
    contents: Mapping[str, bytes]
    """Maps the same names to the contents of the files."""
    installed: bool
    """True if the module was found among the installed packages instead of in one of the folders."""

    @property
    def path(self) -> Path:
        return self.files[self.name]

    @cached_property
    def digest(self) -> str:
        """A blake2b digest of the closure, 40 hexadecimal digits.

        If the module imports nothing from the folders, this is the digest of its file.
        """
        if len(self.files) == 1:
            return hashlib.blake2b(self.contents[self.name], digest_size=20).hexdigest()
        closure = hashlib.blake2b(digest_size=20)
        for name in sorted(self.files):
            closure.update(f"{name}\0{len(self.contents[name])}\0".encode())
            closure.update(self.contents[name])
        return closure.hexdigest()

    def laid_out(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the files' paths within a folder from which they can be imported, with their contents."""
        for name, path in self.files.items():
            parts = name.split(".")
            own = [*parts, path.name] if path.name == "__init__.py" else [*parts[:-1], path.name]
            yield Path(*own), self.contents[name]

    def changed_files(self) -> list[Path]:
        """Return the files whose content has changed since the module was found, or that no longer exist."""
        return [path for name, path in self.files.items() if _content(path) != self.contents[name]]


@dataclass(frozen=True)
class UserProgram(UserModule):
    """A program of the user, which is run instead of imported. The keys of `files` are paths relative to its folder."""

    def laid_out(self) -> Iterator[tuple[Path, bytes]]:
        for path in self.files:
            yield Path(path), self.contents[path]


def find_user_program(given: Sequence[str], folder: Path, named_by: str) -> UserProgram:
    """Return the files of a program, relative to a folder, with everything that its Python files import.

    Imports are followed within the files' own folders, as Python would find them. Raises RefusedError if a file is
    missing, is outside the folder, or is not valid Python.
    """
    files: dict[str, Path] = {}
    contents: dict[str, bytes] = {}
    for name in given:
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise RefusedError("plugins.program_outside_folder", named_by=named_by, name=name, folder=folder)
        if not path.is_file():
            raise RefusedError("plugins.no_program", named_by=named_by, name=name, folder=folder)
        found = UserModule(name, {name: path}, {name: path.read_bytes()}, installed=False)
        if path.suffix == ".py":
            found = _closed(path.stem, path, [path.parent], named_by, in_process=False)
        for module, file in found.files.items():
            files[str(file.relative_to(folder))] = file
            contents[str(file.relative_to(folder))] = found.contents[module]
    return UserProgram(given[0], files, contents, installed=False)


def find_user_module(name: str, folders: Sequence[Path], named_by: str) -> UserModule:
    """Return the module with a dotted name, and its closure. Nothing is executed.

    folders: searched in order, before the installed packages.
    named_by: the setting that names the module, for messages.

    Raises RefusedError if there is no such module, or if bench or Python's library has a package with its name. Also
    raises
    it if a file of the closure is not valid Python, or has the name of an installed package that is already loaded.
    """
    top = name.partition(".")[0]
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise RefusedError("plugins.not_a_module_name", named_by=named_by, name=name)
    if _is_reserved(top):
        whose = "bench's own packages" if top in OUR_PACKAGES else "Python's own modules"
        raise RefusedError("plugins.module_name_reserved", named_by=named_by, name=name, whose=whose, top=top)
    folders = list(dict.fromkeys(folder.resolve() for folder in folders))
    for folder in folders:
        if found := _locate(name, [folder]):
            # The module's own folder comes first when its imports are searched for.
            others = [other for other in folders if other != folder]
            return _closed(name, found, [folder, *others], named_by)
    if found := _locate_installed(name):
        root = found.parents[name.count(".") + (found.name == "__init__.py")]
        return _closed(name, found, [root], named_by, within=top)
    if not folders:
        raise RefusedError("plugins.package_not_installed", named_by=named_by, name=name)
    raise RefusedError("plugins.no_module", named_by=named_by, name=name, folders=" or ".join(map(str, folders)))


def _locate(name: str, folders: Sequence[Path]) -> Path | None:
    """Return a module's file in one of the folders, found without importing its parent packages."""
    path = [str(folder) for folder in folders]
    spec = None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, path)
        path = list(spec.submodule_search_locations or []) if spec else []
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _locate_installed(name: str) -> Path | None:
    top, _, rest = name.partition(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if rest:
        return _locate(rest, [Path(folder) for folder in spec.submodule_search_locations or []])
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _closed(
    name: str, file: Path, folders: Sequence[Path], named_by: str, within: str | None = None, in_process: bool = True
) -> UserModule:
    """Return the closure of a module over its imports in the folders.

    within: include only files of this package.
    in_process: whether this process is to import the module.
    """
    files: dict[str, Path] = {}
    contents: dict[str, bytes] = {}
    # The parent packages are executed before the module, so their files belong to the closure.
    waiting = {name: file} | {parent: path for parent in _parents(name) if (path := _locate(parent, folders))}
    while waiting:
        module, path = waiting.popitem()
        if within is None and in_process:
            _require_free(module, path, named_by)
        files[module], contents[module] = path, path.read_bytes()
        for imported in _imports(module, path, contents[module], named_by):
            top = imported.partition(".")[0]
            if imported in files or (in_process and _is_reserved(top)) or within not in (None, top):
                continue
            if found := _locate(imported, folders):
                waiting[imported] = found
    return UserModule(name, files, contents, installed=within is not None)


def _imports(module: str, path: Path, content: bytes, named_by: str) -> Iterator[str]:
    """Yield every dotted name in the source that may be an imported module, after the names of its parent packages."""
    try:
        tree = ast.parse(content, str(path))
    except (SyntaxError, ValueError) as error:
        raise RefusedError("plugins.not_python", named_by=named_by, path=path, error=error) from None
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # One dot means the module's own package, and each further dot the package above.
            above = package[: len(package) - node.level + 1] if node.level else []
            source = [*above, *([node.module] if node.module else [])]
            # `from a import b` may import the module a.b or the object b of a, so both are tried.
            names = [".".join(source), *(".".join([*source, alias.name]) for alias in node.names)]
        else:
            continue
        for name in filter(None, names):
            yield from (*_parents(name), name)


def _parents(name: str) -> list[str]:
    """Return the parent packages of a module, which are executed before it."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _is_reserved(top: str) -> bool:
    return top in OUR_PACKAGES or top in sys.stdlib_module_names


def _require_free(module: str, path: Path, named_by: str) -> None:
    """Raise RefusedError if another package with the file's name is loaded: Python would return that package."""
    loaded = None if module in _importable else sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if origin is not None and Path(origin).resolve() != path.resolve():
        raise RefusedError("plugins.module_name_installed", named_by=named_by, path=path, module=module, origin=origin)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


_importable: dict[str, tuple[Path, bytes]] = {}
"""Maps each module that Python may import from the user's folders to its path and the file's content."""


def make_importable(modules: Sequence[UserModule]) -> None:
    """Let Python import the closures of these modules, instead of those of earlier calls.

    The contents that the files had when the modules were found are executed, even if the files have changed since. If
    any file of a module's closure differs from earlier calls, the next import executes the module again.
    """
    wanted = {
        name: (path, module.contents[name])
        for module in modules
        if not module.installed
        for name, path in module.files.items()
    }
    stale = {name for name, known in _importable.items() if wanted.get(name) != known}
    # If a file of a module's closure has changed, the complete closure is stale, because its names refer to the old
    # code.
    for module in modules:
        if not stale.isdisjoint(module.files):
            stale.update(module.files)
    for name in stale:
        # A package keeps its imported modules as attributes, so the package must be removed too.
        for forgotten in (name, *_parents(name)):
            sys.modules.pop(forgotten, None)
    _importable.clear()
    _importable.update(wanted)
    if _ClosureFinder not in sys.meta_path:
        sys.meta_path.insert(0, _ClosureFinder)


class _ClosureFinder:
    """Finds only the modules that `make_importable` allows. Python asks it before any other finder."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname in _importable:
            file, content = _importable[fullname]
            holds = [str(file.parent)] if file.name == "__init__.py" else None
            return importlib.util.spec_from_file_location(
                fullname, file, loader=_ContentLoader(str(file), content), submodule_search_locations=holds
            )
        for name, (file, _) in _importable.items():
            if name.startswith(f"{fullname}."):  # a folder without __init__.py that holds one of them
                # The number of folders between the known file and the imported package.
                up = name.count(".") - fullname.count(".") - (file.name != "__init__.py")
                spec = ModuleSpec(fullname, None, is_package=True)
                spec.submodule_search_locations = [str(file.parents[up])]
                return spec
        top, dot, _ = fullname.partition(".")
        if dot and any(name.partition(".")[0] == top for name in _importable):
            # Otherwise Python would search the package's folder itself, and run code that the digest does not cover.
            raise ModuleNotFoundError(
                f"{fullname} is no module that the code here imports by its name. If there is one, import it by a "
                f"statement that names it: import {fullname}"
            )
        return None


class _ContentLoader(SourceLoader):
    """Executes the given source instead of the file's present content.

    It does not use the file's cached bytecode either, which Python accepts for any source of the same size and second.
    """

    def __init__(self, filename: str, content: bytes) -> None:
        self._filename, self._content = filename, content

    def get_filename(self, fullname: str) -> str:
        return self._filename

    def get_data(self, path: str | bytes) -> bytes:
        return self._content


TRUST_OPTION = "--trust-code"
_RECORDS = "sweep.json"
_trusts_all = False


def trust_all(yes: bool) -> None:
    """Allow or disallow running any code that records name, whoever wrote it."""
    global _trusts_all
    _trusts_all = yes


def of_module(module: UserModule) -> str:
    """Return the name of a module's code in the ledger."""
    return f"module {module.digest}"


def remember(code: Iterable[str]) -> None:
    """Record in the ledger that this user runs this code.

    If the ledger cannot be written, the run continues. Reports will then say what they leave out.
    """
    if (ledger := _ledger()) is None:
        return
    with suppress(OSError):
        ledger.mkdir(parents=True, exist_ok=True, mode=0o700)
        for one in code:
            (ledger / _key(one)).touch()


def is_known(code: str) -> bool:
    """Return whether this user has run this code, or trusts all code."""
    ledger = _ledger()
    return _trusts_all or (ledger is not None and (ledger / _key(code)).is_file())


def require_known(code: str, name: str, named_in: Path) -> None:
    """Raise RefusedError unless this user has run this code, or trusts all code."""
    if not is_known(code):
        raise RefusedError(why_not(name, named_in))


def require_all(name: str, path: Path) -> None:
    if not _trusts_all:
        raise RefusedError(why_not(name, path))


def is_trusted(module: UserModule) -> bool:
    own = not module.installed and all(map(is_own, module.files.values()))
    return own or is_known(of_module(module))


def why_not(name: str, path: Path) -> str:
    return (
        f"{name} was not run: it comes with the records, and you have not run this code before. Read {path}; if you "
        f"trust it, add {TRUST_OPTION}."
    )


def is_own(path: Path) -> bool:
    """Return whether a file is directly in the current folder, and that folder is not a folder of runs.

    Files in its subfolders do not count, because such a folder may have been downloaded.
    """
    here = Path.cwd().resolve()
    holds_records = any((folder / _RECORDS).is_file() for folder in (here, *here.parents))
    return path.resolve().parent == here and not holds_records and next(here.glob(f"*/{_RECORDS}"), None) is None


def _ledger() -> Path | None:
    """Return the folder that contains an empty file for each piece of code that was run, or None if it is unknown."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    # With a relative path, the ledger would depend on the current folder, which may contain someone else's ledger.
    return state / "bench" / "code" if state.is_absolute() else None


def _key(code: str) -> str:
    return hashlib.blake2b(code.encode(), digest_size=20).hexdigest()
