"""The house: what may import what, and what starts without heavy libraries."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.look import KINDS
from tests.harness.run import bench

ROOT = Path(__file__).parents[1]
PACKAGES = ("algorithms", "evals", "harness", "reports", "sweeps")

# The rooms from the bottom to the top: each may import those before it, also for type checking only.
ROOMS_OF_HARNESS = (
    *("errors", "namesakes", "plugins", "settings", "random_keys", "processes", "records", "rewards", "config"),
    *("trainers", "executors", "models", "engines", "sampling", "training", "plan", "run", "tracking", "search"),
    *("evaluate", "runs", "api", "cli", "shelves"),
)
ROOMS_OF_REPORTS = (
    *("statistics", "formats", "processes", "report", "measure"),
    *("drawing", "thinking_budget", "figures", "page", "samples", "search", "home", "shelves"),
)
FLOOR = (
    "harness.words",
    "harness.errors",
    "harness.secrets",
    "harness.plugins",
    "harness.settings",
    "harness.OUR_PACKAGES",
)


def upwards(package: str, rooms: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """For each room of a package the rooms that it may import."""
    names = [f"{package}.{room}" for room in rooms]
    return {name: tuple(names[: place + 1]) for place, name in enumerate(names)}


# A module follows the rule of the longest name that it starts with.
MAY_IMPORT = {
    "algorithms": ("algorithms", *FLOOR),
    "evals": ("evals", *FLOOR),
    "sweeps": (),
    "harness": (),
    "reports": (),
    **{
        room: (*below, "algorithms", "evals", "sweeps", *FLOOR)
        for room, below in upwards("harness", ROOMS_OF_HARNESS).items()
    },
    **{room: (*below, "harness.records", *FLOOR) for room, below in upwards("reports", ROOMS_OF_REPORTS).items()},
    "harness.words": ("harness.OUR_PACKAGES",),
    "harness.secrets": (),
    "harness.errors": ("harness.words", "harness.secrets"),
    "harness.plugins": ("harness.errors", "harness.secrets", "harness.plugins", "harness.OUR_PACKAGES"),
    "harness.settings": ("harness.errors", "harness.plugins", "harness.settings"),
    "harness.records": ("harness.records", "harness.errors", "harness.secrets"),
    "harness.runs": PACKAGES,
    "harness.api": PACKAGES,
    "harness.cli": PACKAGES,
    "harness.__main__": PACKAGES,
    "harness.shelves": PACKAGES,
    "reports.statistics": ("reports.statistics",),
    # The weights of tokens are data, given once, for the loss and for the report.
    "reports.measure.difficulty": (
        *("reports.statistics", "reports.processes", "reports.measure", "harness.records"),
        "algorithms.aggregation",
    ),
}

PRODUCT_LINES = 86_000
"""The most lines of Python that the product may have. A commit that raises it says what the new lines buy; one that
deletes many lowers it."""

TEST_LINES = 66_850
"""The same for the tests."""

HEAVY = ("torch", "transformers", "mlflow", "matplotlib", "vllm", "ray", "datasets", "math_verify", "optuna")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {
    module_name(path): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@functools.cache
def imports(code: str, module: str) -> tuple[tuple[str, bool], ...]:
    """Return the names of ours that the code imports, anywhere; with each, whether it is for type checking only."""
    found = []
    for top in ast.parse(code).body:
        for_types = isinstance(top, ast.If) and "TYPE_CHECKING" in ast.dump(top.test)
        for node in ast.walk(top):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}: `from .` hides which room is meant; write the whole name"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            ours = (name for name in names if name.partition(".")[0] in (*PACKAGES, "tests", "benchmarks"))
            found += [(name, for_types) for name in ours]
    return tuple(found)


def is_shelf(name: str) -> bool:
    return not {"shelves", "elsewhere"}.isdisjoint(name.split("."))


def forbidden(code: str, module: str) -> list[str]:
    rule = max((name for name in MAY_IMPORT if within(module, name)), key=len)
    allowed = MAY_IMPORT[rule]
    return [
        name
        for name, _ in imports(code, module)
        if not any(within(name, one) for one in allowed)
        or (is_shelf(name) and not is_shelf(module))
        or (within(name, "harness.cli") and any(within(module, below) for below in ("harness.api", "harness.runs")))
    ]


def test_imports_run_downwards() -> None:
    wrong = {module: found for module, code in SOURCES.items() if (found := forbidden(code, module))}
    assert not wrong


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("algorithms.loss", "from evals import grade"),
        ("evals.tasks.base", "def f():\n    import harness.records"),
        ("harness.run.cell", "from harness.cli.console import note"),
        ("harness.plan.plan", "import reports.statistics"),
        ("harness.records.cell", "from harness.plugins import Kind"),
        ("harness.sampling.sampler", "from harness.training.sequences import Sequences"),
        (
            "harness.training.batch",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import harness.run.prompts",
        ),
        ("reports.page.verdict", "from reports.search.values import StudyObjective"),
        ("reports.page.tables", "from reports.shelves.laws.page import law_tables"),
        ("harness.errors", "from tests import synthetic"),
        ("harness.a_new_room.file", "from harness.errors import BenchError"),
        ("harness.cli.run", "from harness.shelves.probe.design import make_design"),
        ("algorithms.dialects", "from algorithms.elsewhere.trl import TRL"),
        ("harness.api", "def f():\n    from harness.cli.options import words"),
    ],
)
def test_the_rules_find_a_forbidden_import(module: str, code: str) -> None:
    assert forbidden(code, module)


def circle(uses: dict[str, set[str]]) -> list[str]:
    """Modules each of which uses the next one, and the last one the first; [] if there are none."""
    free: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for used in sorted(uses.get(path[-1], set()) - free):
            if used in path:
                return path[path.index(used) :]
            if found := search([*path, used]):
                return found
        free.add(path[-1])
        return []

    return next((found for module in uses if (found := search([module]))), [])


def file_of(name: str) -> str:
    """Return the module that defines an imported name."""
    return name if name in SOURCES else file_of(name.rpartition(".")[0])


def test_no_files_import_each_other_in_a_circle() -> None:
    uses = {
        module: {
            file_of(name)
            for name, for_types in imports(code, module)
            if not for_types and name.partition(".")[0] in PACKAGES
        }
        - {module}
        for module, code in SOURCES.items()
    }
    assert circle(uses) == []
    assert circle({"a": {"b", "d"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


@pytest.mark.parametrize(("folders", "most"), [(PACKAGES, PRODUCT_LINES), (("tests",), TEST_LINES)])
def test_the_sum_of_lines(folders: tuple[str, ...], most: int) -> None:
    by_folder = {
        folder: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py"))
        for folder in folders
    }
    total = sum(by_folder.values())
    print(f"{total:,} lines: {by_folder}")
    assert total <= most


def nounless_beginnings(code: str) -> list[str]:
    """Docstrings and comments that begin with a bare "Of ...", so that the reader has to guess the noun."""
    return re.findall(r'^\s*(?:r?"""|#:? *)(Of [a-z].*)', code, re.MULTILINE)


def clauses(code: str) -> list[str]:
    """Docstrings that begin with a clause where a noun or a verb should stand."""
    return re.findall(r'^\s*r?"""((?:What|Whether|Those) .*)', code, re.MULTILINE)


def test_docstrings_and_comments_name_their_noun() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("[a-z]*/**/*.py"))}
    assert ROOT / "harness/errors.py" in sources
    assert not {str(path): found for path, code in sources.items() if (found := nounless_beginnings(code))}
    product = {path: code for path, code in sources.items() if path.relative_to(ROOT).parts[0] in PACKAGES}
    assert not {str(path): found for path, code in product.items() if (found := clauses(code))}
    assert nounless_beginnings('LIMIT = 255\n"""Of a folder."""\nif x:\n    # Of two, the last.') == [
        'Of a folder."""',
        "Of two, the last.",
    ]
    assert clauses('x: int\n"""What holds."""\n# What holds') == ['What holds."""']


@pytest.mark.slow
def test_looking_around_starts_without_heavy_libraries(tmp_path: Path) -> None:
    """One process runs all of them; after each it says what has been imported."""
    shown = ["show cispo", "show ppo_clip", "show train.steps", "diff grpo cispo", "show std_norm"]
    shown += ["plan std_norm", "plan std_norm --json"]
    listed = [f"ls {one}" for one in (*KINDS, "profiles", "knobs", "runs")]
    commands = ["--help", "run --help", "ls", *listed, *shown]
    code = f"""
import contextlib, io, sys
from harness.cli import main
for command in {commands!r}:
    sys.argv = ["bench", *command.split()]
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.suppress(SystemExit):
        main()
    assert stdout.getvalue() or command == "ls runs", f"{{command}} says nothing"
    found = [name for name in {HEAVY!r} if name in sys.modules]
    assert not found, f"bench {{command}} imports {{found}}"
print("clean")
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}
    )
    assert result.stdout == "clean\n", result.stderr


@pytest.mark.slow
def test_bench_run_itself_never_imports_torch(tmp_path: Path) -> None:
    """Its workers do: seconds in which nothing would be trained."""
    program = bench.PROGRAM.replace(
        "main()", "import sys\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    code, stderr = bench.run(bench.write_sweep(tmp_path, seeds=1), tmp_path / "runs", program=program)
    assert code == 0, stderr
