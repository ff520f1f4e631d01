"""The house: what may import what, what starts without heavy libraries, how long a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.run import bench

ROOT = Path(__file__).parents[1]
PACKAGES = ("algorithms", "evals", "harness", "reports", "sweeps")
MAX_LINES = 400

BASICS = ("harness.errors", "harness.random_keys")

# The rooms of reports, from the bottom to the top: each may import those before it.
ROOMS_OF_REPORTS = (
    *("reports.statistics", "reports.laws", "reports.formats", "reports.processes", "reports.measure"),
    *("reports.drawing", "reports.extras", "reports.figures", "reports.page", "reports.search"),
)

# A module follows the rule of the longest name that it starts with: the modules of ours that it may import.
MAY_IMPORT = {
    "algorithms": ("algorithms", "harness.plugins", "harness.errors"),
    "evals": ("evals", "harness.plugins", "harness.errors"),
    "sweeps": (),
    "harness": ("harness", "algorithms", "evals", "sweeps"),
    "harness.records": ("harness.records",),
    "harness.rewards": ("harness.rewards", "harness.plugins", *BASICS, "algorithms", "evals"),
    "harness.models": ("harness.models", "harness.config", *BASICS, "evals"),
    "harness.engines": ("harness.engines", "harness.models", "harness.config", *BASICS, "evals"),
    "harness.training": (
        *("harness.training", "harness.engines", "harness.models", "harness.config", "harness.rewards"),
        *("harness.records", *BASICS, "algorithms", "evals"),
    ),
    "harness.cli": PACKAGES,
    "reports": (),
    **{
        room: ("harness.errors", "harness.plugins", "harness.records", *ROOMS_OF_REPORTS[: place + 1])
        for place, room in enumerate(ROOMS_OF_REPORTS)
    },
    "reports.statistics": ("reports.statistics",),
    "reports.laws": ("reports.laws",),
}
MAY_NOT_IMPORT = {"harness": ("harness.cli",)}

HEAVY = ("torch", "transformers", "mlflow", "matplotlib", "vllm", "ray", "datasets", "math_verify", "optuna")


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports(code: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Every module of ours that the code imports: at the top, inside functions, or for type checking only."""
    base = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = [] if node.level == 0 else base[: len(base) - node.level + 1]
            source = ".".join([*parent, *([node.module] if node.module else [])])
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in (*PACKAGES, "tests", "benchmarks"))


def forbidden(code: str, module: str, is_package: bool = False) -> list[str]:
    rule = max((name for name in MAY_IMPORT if within(module, name)), key=len)
    return [
        name
        for name in imports(code, module, is_package)
        if not any(within(name, allowed) for allowed in MAY_IMPORT[rule])
        or any(within(name, banned) for banned in MAY_NOT_IMPORT.get(rule, ()))
    ]


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_imports_run_downwards(path: Path) -> None:
    wrong = forbidden(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py")
    assert not wrong, f"{module_name(path)} may not import {', '.join(wrong)}"


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("algorithms.loss", "from evals import grade"),
        ("evals.tasks.base", "def f():\n    import harness.records"),
        ("sweeps", "import algorithms"),
        ("harness.run.cell", "from harness import cli"),
        ("harness.run.cell", "from harness.cli.console import note"),
        ("harness.plan.plan", "import reports.statistics"),
        ("harness.records.cell", "from harness.run import sweep"),
        ("harness.records.cell", "from ..errors import BenchError"),
        ("harness.rewards.total", "from harness.config.reward import RewardSpec"),
        ("harness.engines.choice", "from harness.training.sequences import Sequences"),
        ("harness.training.batch", "from harness.run.prompts import PromptOrder"),
        ("reports.page", "from harness.config import RunSpec"),
        ("reports.page.verdict", "from reports.search.values import Objective"),
        ("reports.measure.curves", "from reports.drawing.style import INK"),
        ("reports", "from reports.measure import analyse"),
        ("reports.page", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from algorithms import Objective"),
        ("reports.statistics", "from reports.formats import percent"),
        ("reports.laws", "from harness.records import read_sweep"),
        ("harness.errors", "from tests import synthetic"),
    ],
)
def test_the_rules_find_a_forbidden_import(module: str, code: str) -> None:
    assert forbidden(code, module)


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("harness.run.cell", "from algorithms import advantages\nfrom evals.tasks import get_task\nimport torch"),
        ("harness.cli.plan", "from reports.statistics import power\nfrom harness.plan import make_plan"),
        ("reports.page", "from harness.records import read_sweep\nfrom reports import formats"),
        ("reports.search", "from harness.errors import BenchError\nfrom reports.page.templating import write_page"),
        ("harness.records.cell", "from .files import read_json"),
    ],
)
def test_the_rules_leave_a_proper_import_alone(module: str, code: str) -> None:
    assert not forbidden(code, module)


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


@pytest.mark.parametrize("package", ["reports"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    paths = {module_name(path): path for path in sources() if within(module_name(path), package)}
    uses = {
        module: {
            max((other for other in paths if within(name, other)), key=len)
            for name in imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
            if within(name, package)
        }
        for module, path in paths.items()
    }
    assert circle(uses) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b", "d"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_every_module_is_seen() -> None:
    modules = {module_name(path) for path in sources()}
    assert {"algorithms.loss", "evals.tasks", "harness.cli", "harness.config.resolve", "reports.statistics"} <= modules


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines: make it a folder"


def test_looking_around_starts_without_heavy_libraries(tmp_path: Path) -> None:
    """One process runs all of them; after each it says what has been imported."""
    what = ("algorithms", "rules", "tasks", "templates", "graders", "metrics", "knobs", "rewards", "engines")
    what += ("figures", "runs")
    shown = ["show cispo", "diff grpo cispo", "show std_norm", "plan std_norm", "plan std_norm --json"]
    commands = ["--help", "run --help", "ls", *(f"ls {one}" for one in what), *shown]
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


def test_bench_run_itself_never_imports_torch(tmp_path: Path) -> None:
    """Its workers do: seconds in which nothing would be trained."""
    program = bench.PROGRAM.replace(
        "main()", "import sys\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    code, stderr = bench.run(bench.write_sweep(tmp_path, seeds=1), tmp_path / "runs", program=program)
    assert code == 0, stderr
