"""Another package with the name of one of ours, found before ours: the first line says so, whatever the verb."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = "import sys; sys.argv = ['bench', *sys.argv[1:]]; from harness.cli import main; main()"


def bench(*words: str, cwd: Path, path: list[Path], **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT]))} | environment
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, cwd=cwd, env=variables
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["algorithms", "evals", "reports", "sweeps"])
def test_a_package_on_pythonpath(tmp_path: Path, name: str) -> None:
    (tmp_path / "theirs" / name).mkdir(parents=True)
    (tmp_path / "theirs" / name / "__init__.py").touch()
    told = bench("ls", "tasks", "--json", cwd=tmp_path, path=[tmp_path / "theirs"])
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(f"error: {tmp_path}/theirs/{name} ") and f"({ROOT / name})" in told.stderr
    assert "PYTHONPATH" in told.stderr and "Traceback" not in told.stderr


@pytest.mark.slow
def test_a_module_in_the_current_folder(tmp_path: Path) -> None:
    """`python -c` and `python -m` put the current folder first; PYTHONSAFEPATH does not."""
    (tmp_path / "evals.py").write_text("raise SystemExit('executed')", encoding="utf-8")
    told = bench("--help", cwd=tmp_path, path=[])
    assert told.returncode == 2
    assert told.stderr.startswith(f"error: {tmp_path}/evals.py ") and "PYTHONSAFEPATH=1" in told.stderr
    assert bench("--help", cwd=tmp_path, path=[], PYTHONSAFEPATH="1").returncode == 0


def test_an_installed_package(tmp_path: Path) -> None:
    """It is found before ours where bench is an editable installation."""
    theirs = tmp_path / "site-packages"
    (theirs / "evals").mkdir(parents=True)
    (theirs / "evals" / "__init__.py").touch()
    program = f"import sys; sys.path.insert(0, {str(theirs)!r}); from harness.cli import main; main()"
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert told.returncode == 2 and told.stderr.startswith(f"error: {theirs / 'evals'} ")


def test_a_folder_of_files_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    assert bench("--help", cwd=tmp_path, path=[]).returncode == 0


def test_the_python_api_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "__init__.py").touch()
    told = subprocess.run(
        [sys.executable, "-c", "import harness.api"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1].startswith(f"harness.errors.RefusedError: {tmp_path}/evals ")
