"""Plug-ins: one file adds one thing. Files of this project are found by their folder, those of users by their name.

A kind (`Kind`) is a category of things, such as presets, figures or graders. Each kind has a room, which is a folder of
this project. Every module in the room is searched for things of the kind, i.e. objects at its top level. So are the
modules of the same name on shelves: `harness/shelves/trl/trainers.py` adds to `harness/trainers`. A shelf is a folder
that nothing else imports, so that bench runs without it.

A user's module is searched in the same way, for things of every kind. It is named under `plugins:` in the sweep file,
by --plugin, or by an installed package under the entry-point group `bench.plugins`.

Everything else builds on this package and `harness.errors`. They import nothing else of bench.
"""

from __future__ import annotations

import functools
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Generic, ParamSpec, TypeVar, cast

from harness.errors import RefusedError, UnknownNameError
from harness.plugins import user_code
from harness.plugins.user_code import UserModule, find_user_module, find_user_program, make_importable

__all__ = ["UserModule", "find_user_module", "user_code"]
"""Names that are defined elsewhere and that other modules import from here."""

GROUP = "bench.plugins"
"""The entry-point group. The value of an entry is the name of a module."""

Thing = TypeVar("Thing")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Outside:
    """A user's module that has been executed, and the source from which it was executed."""

    source: UserModule
    module: ModuleType


_folders: list[Path] = []
_named: list[_Outside] = []
_referred: dict[str, UserModule] = {}
"""Modules that are not plug-ins, but contain a function that a spec names."""
_for_records = False
"""True if records, not the user, name the code to run. If so, the code runs only if it is trusted."""
_left_out: list[str] = []
"""Sentences on what readers of the records must do without."""
_generation = 0
"""The number of changes of the plug-ins in use, by which cached results notice that they are out of date."""


def use(
    names: Sequence[str], folders: Sequence[Path], named_by: str = "plugins", for_records: bool = False
) -> list[UserModule]:
    """Make these modules the plug-ins in use, instead of those of earlier calls.

    Installed packages that register themselves are plug-ins too.
    folders: searched in order, then the current folder, then the installed packages.
    named_by: the setting that names the modules, for messages.
    for_records: whether a run's records name the modules, so that only trusted code may run from now on.
    Raises RefusedError as `find_user_module` and `require_trusted`, and for a module that cannot be executed.
    """
    folders = [*folders, Path.cwd()]
    sources = [find_user_module(name, folders, named_by) for name in dict.fromkeys(names)]
    # All modules are checked before the first one is executed.
    for source in sources if for_records else ():
        _require_trusted(source, named_by)
    use_found(sources, folders, for_records, named_by)
    return sources


def use_found(
    sources: Sequence[UserModule], folders: Sequence[Path], for_records: bool = False, named_by: str = "plugins"
) -> None:
    """Do the same as `use` with modules that were found before and may run. Their recorded contents are executed."""
    global _for_records
    _folders[:] = folders
    _for_records = for_records
    _referred.clear()
    _left_out.clear()
    # Equal sources have equal contents, so a repeated call executes nothing again.
    if [one.source for one in _named] != list(sources):
        make_importable(sources)
        try:
            _named[:] = [_Outside(source, _executed(source.name, named_by)) for source in sources]
        except RefusedError:
            # Return to the modules that are still in use.
            make_importable([one.source for one in _named])
            raise
        _forget()


def find_recorded(name: str, digest: str, kept: Path) -> UserModule:
    """Return the module with the digest that a run's records name.

    It is searched for in the current folder, in the folder `kept` of the run, and among the installed packages. Nothing
    is executed. Raises RefusedError if it is not found or may not run.
    """
    named_by = f"plug-in {name}"
    candidates = []
    for folders in ([Path.cwd()], [kept], []):
        with suppress(RefusedError):
            candidates.append(find_user_module(name, folders, named_by))
    # This search in all folders raises the error, whose message names them.
    if not candidates:
        find_user_module(name, [Path.cwd(), kept], named_by)
    recorded = [module for module in candidates if module.digest == digest]
    if not recorded:
        raise RefusedError(
            "plugins.not_as_recorded",
            named_by=named_by,
            paths=" and ".join(dict.fromkeys(str(module.path) for module in candidates)),
        )
    trusted = [module for module in recorded if user_code.is_trusted(module)]
    if not trusted:
        _require_trusted(recorded[0], named_by)
    return trusted[0]


def require_trusted(module: UserModule, named_by: str) -> None:
    """Raise RefusedError if this module is named by records and not trusted to run."""
    if _for_records:
        _require_trusted(module, named_by)


def _require_trusted(module: UserModule, named_by: str) -> None:
    if not user_code.is_trusted(module):
        raise RefusedError("plugins.not_trusted", named_by=named_by, reason=user_code.why_not(module.name, module.path))


def is_for_records() -> bool:
    """Return whether the code to run is named by a run's records instead of by the user."""
    return _for_records


def leave_out(sentence: str) -> None:
    """Record a sentence on what readers of the records must do without, until the plug-ins in use change."""
    _left_out.append(sentence)


def left_out() -> list[str]:
    """Return the sentences on what readers of the records must do without."""
    return list(_left_out)


def asked_for() -> tuple[list[str], list[Path]]:
    """Return the names and folders of the last call of `use`, for a process that must use the same plug-ins."""
    return [one.source.name for one in _named], list(_folders)


def named() -> tuple[list[UserModule], list[Path], bool]:
    """Return the arguments of the last `use_found`: the modules, the folders, and whether records named them."""
    return [one.source for one in _named], list(_folders), _for_records


def in_use() -> list[UserModule]:
    """Return the named plug-ins, followed by those of installed packages."""
    return [one.source for one in _outside()]


def files_in_use() -> set[str]:
    """Return the paths of the user's code: of plug-ins, and of modules whose functions a spec names."""
    return {str(path) for module in (*in_use(), *list(_referred.values())) for path in module.files.values()}


def source_of(module: str, named_by: str) -> UserModule:
    """Return the module whose function a setting names, searched for in the folders of plug-ins.

    named_by: the setting. The module is not executed. Raises RefusedError as `find_user_module`.
    """
    if module not in _referred:
        _referred[module] = find_user_module(module, _folders or [Path.cwd()], named_by)
    return _referred[module]


def imported(module: str, named_by: str) -> ModuleType:
    """Return the module that `source_of` finds, executed.

    Raises RefusedError as `source_of` and `require_trusted`, and if the module raises an error.
    """
    require_trusted(source_of(module, named_by), named_by)
    make_importable([*(one.source for one in _named), *_referred.values()])
    return _executed(module, named_by)


def user_file(given: str) -> Path:
    """Return the path of a file that a setting names.

    If the file does not exist relative to the current folder, it is searched for in the folders of plug-ins, such as
    the sweep file's. If it is in none of them, the path is returned unchanged.
    """
    return next((folder / given for folder in (Path(), *_folders) if (folder / given).is_file()), Path(given))


def folder_of_program(files: Sequence[str], named_by: str) -> Path:
    """Return the first folder that contains the first of a program's files.

    The current folder is searched first, then the folders of plug-ins. Raises RefusedError if none contains it.
    """
    folders = list(dict.fromkeys(folder.resolve() for folder in (Path(), *_folders)))
    for folder in folders:
        if (folder / files[0]).is_file():
            return folder
    raise RefusedError(
        "plugins.no_program_file", named_by=named_by, file=files[0], folders=" or ".join(map(str, folders))
    )


def program(files: Sequence[str], named_by: str) -> UserModule:
    """Return a program of the user, with everything that its files import from their folders.

    Raises RefusedError as `folder_of_program` and `find_user_program`.
    """
    return find_user_program(files, folder_of_program(files, named_by), named_by)


def _executed(name: str, named_by: str) -> ModuleType:
    try:
        # If the module printed to stdout, its output would precede bench's JSON document.
        with redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # any error of the user's code is the user's to fix
        raise RefusedError(
            "plugins.cannot_import", named_by=named_by, name=name, error_type=type(error).__name__, error=error
        ) from error


@functools.cache
def _registered() -> tuple[_Outside, ...]:
    # This module is imported late, because it takes a third of the time of `bench --help`.
    from importlib import metadata

    found = []
    for entry in metadata.entry_points(group=GROUP):
        whose = f"the entry point {entry.name} of {entry.dist.name if entry.dist else 'a package'} ({GROUP})"
        found.append(_Outside(find_user_module(entry.module, [], whose), _executed(entry.module, whose)))
    # While these plug-ins were executed, cached results were computed without them.
    _forget()
    return tuple(found)


def _outside() -> Iterator[_Outside]:
    yield from _named
    yield from (one for one in _registered() if one.source.name not in {named.source.name for named in _named})


def _forget() -> None:
    global _generation
    _generation += 1


def cached(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Cache a function like `functools.cache`, until the plug-ins in use change. For results that depend on them."""
    remembered = functools.cache(function)
    generation = _generation

    @functools.wraps(function)
    def current(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        nonlocal generation
        # This is checked at each call instead of at each change, so that no list of caches is needed.
        if generation != _generation:
            remembered.cache_clear()
            generation = _generation
        return remembered(*args, **kwargs)  # type: ignore[arg-type]  # arguments are hashable where it is used

    return current


SHELVES = "shelves"


def on_shelves(room: str) -> list[str]:
    """Return the sorted dotted names of the modules on shelves that belong to a room.

    For example, `harness.shelves.trl.trainers` belongs to `harness.trainers`.
    """
    package, *_, last = room.split(".")
    shelves = Path(str(importlib.import_module(package).__file__)).parent / SHELVES
    rooms = [*shelves.glob(f"*/{last}.py"), *shelves.glob(f"*/{last}/")]
    return sorted(f"{package}.{SHELVES}.{path.parent.name}.{last}" for path in rooms)


def _shipped_folders(room: str) -> Iterator[ModuleType]:
    """Import the packages with the shipped things of a room: the room itself, if it exists, and shelves."""
    own = [room] if importlib.util.find_spec(room) is not None else []
    yield from (importlib.import_module(name) for name in (*own, *on_shelves(room)))


class Kind(Generic[Thing]):
    """A category of things, which are found by their names.

    noun: the name of the category in messages, e.g. "figure".
    is_one: returns whether an object at a module's top level is such a thing.
    package: the dotted name of the room with the shipped things.
    listed_by: the command that lists the things.
    name_of: returns a thing's name.
    from_yaml: creates a thing from a YAML file in the room, for kinds that can be declared.
    summary_of: returns a one-line description of a thing.
    about_of: returns further information about a thing, one line per paragraph.
    besides: maps further forms that a setting accepts instead of a name to their meanings.
    """

    def __init__(
        self,
        noun: str,
        is_one: Callable[[object], bool],
        package: str,
        listed_by: str,
        name_of: Callable[[Thing], str] = lambda thing: thing.name,  # type: ignore[attr-defined]
        from_yaml: Callable[[Path], Thing] | None = None,
        summary_of: Callable[[Thing], str] = lambda thing: thing.summary,  # type: ignore[attr-defined]
        besides: Mapping[str, str] | None = None,
        about_of: Callable[[Thing], str] = lambda thing: "",
    ) -> None:
        self.noun, self.listed_by, self.besides = noun, listed_by, besides or {}
        self._is_one, self._package, self._name_of = is_one, package, name_of
        self._from_yaml, self._summary_of, self._about_of = from_yaml, summary_of, about_of
        self._known = cached(self._search)

    def all(self) -> dict[str, Thing]:
        """Return every thing by its name: the shipped things, module by module, then those of plug-ins.

        Raises RefusedError if a plug-in gives two things the same name, or a name that a shipped thing has.
        """
        return {name: thing for name, (thing, _) in self._known().items()}

    def names(self) -> tuple[str, ...]:
        return tuple(self._known())

    def find(self, name: str) -> Thing:
        """Return the thing with a name. Raises UnknownNameError, which suggests the nearest names."""
        known = self._known()
        if name not in known:
            raise UnknownNameError(self.noun, name, known, self.listed_by)
        return known[name][0]

    def summary(self, name: str) -> str:
        """Return the one-line description of the thing with a name. Raises UnknownNameError."""
        return self._summary_of(self.find(name))

    def about(self, name: str) -> str:
        """Return further information about a thing, one line per paragraph, or "" if there is none.

        Raises UnknownNameError.
        """
        return self._about_of(self.find(name))

    def source(self, name: str) -> UserModule | None:
        """Return the plug-in that defines a thing, or None for a shipped thing. Raises UnknownNameError."""
        self.find(name)
        return self._known()[name][1]

    def _search(self) -> dict[str, tuple[Thing, UserModule | None]]:
        known: dict[str, tuple[Thing, UserModule | None]] = {}
        for room in _shipped_folders(self._package):
            folders = getattr(room, "__path__", None)
            if folders is None:
                self._take(known, vars(room).values(), None)
                continue
            for info in pkgutil.iter_modules(folders):
                # Modules whose names begin with an underscore are helpers of their room.
                if not info.name.startswith("_"):
                    self._take(known, vars(importlib.import_module(f"{room.__name__}.{info.name}")).values(), None)
            if self._from_yaml is not None:
                files = sorted(path for folder in folders for path in Path(folder).glob("*.yaml"))
                self._take(known, map(self._from_yaml, files), None)
        for one in _outside():
            self._take(known, vars(one.module).values(), one.source)
        return known

    def _take(
        self,
        known: dict[str, tuple[Thing, UserModule | None]],
        candidates: Iterable[object],
        source: UserModule | None,
    ) -> None:
        for candidate in filter(self._is_one, candidates):
            thing = cast(Thing, candidate)
            name = self._name_of(thing)
            if name not in known:
                known[name] = (thing, source)
            # If the same object is found twice under one name, this is not a clash: a module may import it from
            # another.
            elif known[name][0] is not thing:
                other = known[name][1]
                whose = "shipped one" if other is None else f"thing of the same kind in {other.path}"
                raise RefusedError(
                    "plugins.name_taken",
                    path=source.path if source else self._package,
                    noun=self.noun,
                    name=name,
                    whose=whose,
                )
