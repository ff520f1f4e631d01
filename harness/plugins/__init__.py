"""Plug-ins: one file adds one thing, from inside by its folder, from outside by its name.

A kind (`Kind`) says what the things are: presets, figures, graders, ... Each kind has a room, a folder of this project.
Every module in it is searched for things of that kind: objects at its top level. So are the modules of the same name on
shelves: `harness/shelves/trl/trainers.py` adds to `harness/trainers`. A shelf is a folder that nothing else imports, so
that bench runs without it. A module of the user's own is searched in the same way, for things of every kind. It is
named by `plugins:` of the sweep file, by --plugin, or by an installed package under the entry-point group
`bench.plugins`.

Everything else builds on this package and `harness.errors`; they import nothing else of bench.
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
"""Names that other modules import from here although they are defined elsewhere."""

GROUP = "bench.plugins"
"""The entry-point group; the value of an entry is the name of a module."""

Thing = TypeVar("Thing")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Outside:
    """A module of the user's own, executed, with the source that it was executed from."""

    source: UserModule
    module: ModuleType


_folders: list[Path] = []
_named: list[_Outside] = []
_referred: dict[str, UserModule] = {}
"""Modules that are not plug-ins, but hold a function that a spec names."""
_for_records = False
"""True if records, and not the user, say what code to run: then it runs only if it is trusted."""
_left_out: list[str] = []
"""What readers of the records do without, a sentence each."""
_generation = 0
"""Counts the changes of what is in use, so that derived results can be recomputed."""


def use(
    names: Sequence[str], folders: Sequence[Path], named_by: str = "plugins", for_records: bool = False
) -> list[UserModule]:
    """Make these modules plug-ins, in place of those of earlier calls.

    Installed packages that register themselves are plug-ins too. folders: searched in order before the installed
    packages; the current folder is searched last of the folders. named_by: the setting that names the modules, for
    messages. for_records: a run's records name the modules, so that only trusted ones may run from now on.

    Raises RefusedError as `find_user_module` and `require_trusted`, and for a module that cannot be executed.
    """
    folders = [*folders, Path.cwd()]
    sources = [find_user_module(name, folders, named_by) for name in dict.fromkeys(names)]
    # All modules are checked before the first is executed.
    for source in sources if for_records else ():
        _require_trusted(source, named_by)
    use_found(sources, folders, for_records, named_by)
    return sources


def use_found(
    sources: Sequence[UserModule], folders: Sequence[Path], for_records: bool = False, named_by: str = "plugins"
) -> None:
    """Do as `use`, with modules that were found already and may run: what runs is what they hold."""
    global _for_records
    _folders[:] = folders
    _for_records = for_records
    _referred.clear()
    _left_out.clear()
    # Equal sources hold equal bytes, so a repeated call executes nothing again.
    if [one.source for one in _named] != list(sources):
        make_importable(sources)
        try:
            _named[:] = [_Outside(source, _executed(source.name, named_by)) for source in sources]
        except RefusedError:
            # Back to the modules that are still in use.
            make_importable([one.source for one in _named])
            raise
        _forget()


def find_recorded(name: str, digest: str, kept: Path) -> UserModule:
    """Find the module with the digest that a run's records name.

    It is looked for in the current folder, in the folder `kept` of the run, and among the installed packages. Nothing
    is executed. Raises RefusedError if there is none, and if it may not run.
    """
    named_by = f"plug-in {name}"
    candidates = []
    for folders in ([Path.cwd()], [kept], []):
        with suppress(RefusedError):
            candidates.append(find_user_module(name, folders, named_by))
    # Search once more in all folders, only for its error message, which names them.
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
    """Raise RefusedError if records name this module and it is not trusted to run."""
    if _for_records:
        _require_trusted(module, named_by)


def _require_trusted(module: UserModule, named_by: str) -> None:
    if not user_code.is_trusted(module):
        raise RefusedError("plugins.not_trusted", named_by=named_by, reason=user_code.why_not(module.name, module.path))


def is_for_records() -> bool:
    """Return whether a run's records, and not the user, name the code that is requested now."""
    return _for_records


def leave_out(sentence: str) -> None:
    """Note what readers of the records do without, until other plug-ins are in use."""
    _left_out.append(sentence)


def left_out() -> list[str]:
    """Return what readers of the records do without, a sentence each."""
    return list(_left_out)


def asked_for() -> tuple[list[str], list[Path]]:
    """Return the names and folders of the last call of `use`, for a process that must use the same."""
    return [one.source.name for one in _named], list(_folders)


def named() -> tuple[list[UserModule], list[Path], bool]:
    """Return the modules that were named, the folders, and whether this was for records; `use_found` takes them."""
    return [one.source for one in _named], list(_folders), _for_records


def in_use() -> list[UserModule]:
    """Return the plug-ins that were named, then those of installed packages."""
    return [one.source for one in _outside()]


def files_in_use() -> set[str]:
    """Return the paths of the user's code: of plug-ins, and of modules with a function that a spec names."""
    return {str(path) for module in (*in_use(), *list(_referred.values())) for path in module.files.values()}


def source_of(module: str, named_by: str) -> UserModule:
    """Find the module with a function that the setting `named_by` names, in the folders of plug-ins.

    It is not executed. Raises RefusedError as `find_user_module`.
    """
    if module not in _referred:
        _referred[module] = find_user_module(module, _folders or [Path.cwd()], named_by)
    return _referred[module]


def imported(module: str, named_by: str) -> ModuleType:
    """Find the module as `source_of` does, and execute it.

    Raises RefusedError as `source_of` and `require_trusted`, and for whatever the module raises.
    """
    require_trusted(source_of(module, named_by), named_by)
    make_importable([*(one.source for one in _named), *_referred.values()])
    return _executed(module, named_by)


def user_file(given: str) -> Path:
    """Return the path of a file that a setting names.

    It is relative to the current folder if the file exists there, else to the first folder of plug-ins that has it,
    such as the sweep file's. If none has it, the path is returned unchanged.
    """
    return next((folder / given for folder in (Path(), *_folders) if (folder / given).is_file()), Path(given))


def folder_of_program(files: Sequence[str], named_by: str) -> Path:
    """Return the folder of a program's files: the first that has the first file.

    The current folder comes first, then the folders of plug-ins. Raises RefusedError if none has it.
    """
    folders = list(dict.fromkeys(folder.resolve() for folder in (Path(), *_folders)))
    for folder in folders:
        if (folder / files[0]).is_file():
            return folder
    raise RefusedError(
        "plugins.no_program_file", named_by=named_by, file=files[0], folders=" or ".join(map(str, folders))
    )


def program(files: Sequence[str], named_by: str) -> UserModule:
    """Return a program of the user's own with all that its files import from below their folders.

    Raises RefusedError as `folder_of_program` and `find_user_program`.
    """
    return find_user_program(files, folder_of_program(files, named_by), named_by)


def _executed(name: str, named_by: str) -> ModuleType:
    try:
        # Its output on stdout would precede our JSON document.
        with redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # any error of the user's code is the user's to fix
        raise RefusedError(
            "plugins.cannot_import", named_by=named_by, name=name, error_type=type(error).__name__, error=error
        ) from error


@functools.cache
def _registered() -> tuple[_Outside, ...]:
    """Return the plug-ins of installed packages."""
    # Imported late: it takes a third of the time of `bench --help`.
    from importlib import metadata

    found = []
    for entry in metadata.entry_points(group=GROUP):
        whose = f"the entry point {entry.name} of {entry.dist.name if entry.dist else 'a package'} ({GROUP})"
        found.append(_Outside(find_user_module(entry.module, [], whose), _executed(entry.module, whose)))
    # Whatever they looked up while they were executed was found without them.
    _forget()
    return tuple(found)


def _outside() -> Iterator[_Outside]:
    yield from _named
    yield from (one for one in _registered() if one.source.name not in {named.source.name for named in _named})


def _forget() -> None:
    global _generation
    _generation += 1


def cached(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Cache a function like `functools.cache`, until other plug-ins are in use: for results derived from them."""
    remembered = functools.cache(function)
    generation = _generation

    @functools.wraps(function)
    def current(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        nonlocal generation
        # Checked at each call and not at each change, so that nobody has to keep a list of the caches.
        if generation != _generation:
            remembered.cache_clear()
            generation = _generation
        return remembered(*args, **kwargs)  # type: ignore[arg-type]  # arguments are hashable where it is used

    return current


SHELVES = "shelves"


def on_shelves(room: str) -> list[str]:
    """Return the dotted names of the modules on shelves for a room, sorted.

    `harness.shelves.trl.trainers` is one for `harness.trainers`.
    """
    package, *_, last = room.split(".")
    shelves = Path(str(importlib.import_module(package).__file__)).parent / SHELVES
    rooms = [*shelves.glob(f"*/{last}.py"), *shelves.glob(f"*/{last}/")]
    return sorted(f"{package}.{SHELVES}.{path.parent.name}.{last}" for path in rooms)


def _shipped_folders(room: str) -> Iterator[ModuleType]:
    """Import the packages with the shipped things of a room: its own, if it exists, and those on shelves."""
    own = [room] if importlib.util.find_spec(room) is not None else []
    yield from (importlib.import_module(name) for name in (*own, *on_shelves(room)))


class Kind(Generic[Thing]):
    """One kind of things, by their names.

    noun: "figure", in messages. is_one: whether an object at a module's top level is such a thing. package: dotted, the
    room of the shipped things. listed_by: the command that lists them. name_of: a thing's name. from_yaml: makes a
    thing of a YAML file in that folder, for kinds that can be declared. summary_of: what a thing is, in a line.
    about_of: what else there is to know of it, a line for each paragraph. besides: other forms than a name that a
    setting accepts for such a thing, each with its meaning.
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
        """Map every thing's name to it: the shipped ones, module by module, then those of plug-ins.

        Raises RefusedError if a plug-in gives two things one name, or a name that a shipped thing has.
        """
        return {name: thing for name, (thing, _) in self._known().items()}

    def names(self) -> tuple[str, ...]:
        """Return the names of all things."""
        return tuple(self._known())

    def find(self, name: str) -> Thing:
        """Return the thing of a name. Raises UnknownNameError, which names the nearest ones."""
        known = self._known()
        if name not in known:
            raise UnknownNameError(self.noun, name, known, self.listed_by)
        return known[name][0]

    def summary(self, name: str) -> str:
        """Return what the thing of a name is, in a line. Raises UnknownNameError."""
        return self._summary_of(self.find(name))

    def about(self, name: str) -> str:
        """Return what else there is to know of a thing, a line for each paragraph; "" for nothing.

        Raises UnknownNameError.
        """
        return self._about_of(self.find(name))

    def source(self, name: str) -> UserModule | None:
        """Return the plug-in that a thing comes from; None for a shipped one. Raises UnknownNameError."""
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
                # Modules with an underscore are helpers of their room.
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
            # The same object under its name is no clash: a module may import it from another.
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
