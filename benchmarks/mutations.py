"""No speed: how many of 60 small faults, put into the product one at a time, the tests catch.

A fault is a sign, a bound, an off-by-one, a dropped call (half of them of fsync), two swapped arguments, or a lost
mask: ten of each, drawn with a seed. All fast tests run once on a product that reports which of them reach which
fault. Then those that reach a fault run with it. A fault that all let pass counts as missed. Compare two versions of
the tests only on the same product: the draw depends on every line of it.

    python benchmarks/mutations.py --seed 61
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("algorithms", "evals", "harness", "reports")
HOW_MANY = {
    "bound": 10,
    "dropped call": 5,
    "dropped fsync": 5,
    "lost mask": 10,
    "off by one": 10,
    "sign": 10,
    "swapped arguments": 10,
}
LIMIT_S = 300
"""Wall time of one run of tests. A fault that hangs them is caught."""
TESTS_AT_ONCE = 40


@dataclass(frozen=True)
class Fault:
    """One replacement in one file: `text` in place of the characters from `start` to `end`."""

    kind: str
    path: Path
    line: int
    start: int
    end: int
    text: str


def faults_of(path: Path) -> Iterator[Fault]:
    """Yield every fault that the file offers."""
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text.encode()))
    data = source.encode()

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def replaced(kind: str, node: ast.expr | ast.stmt, text: str, at: tuple[int, int] | None = None) -> Fault:
        return Fault(kind, path, node.lineno, *(at or span(node)), text)

    def written(node: ast.expr) -> str:
        start, end = span(node)
        return data[start:end].decode()

    def between(left: ast.expr, right: ast.expr, old: str) -> tuple[int, int] | None:
        start, end = span(left)[1], span(right)[0]
        place = data[start:end].decode().find(old)
        return None if place < 0 else (start + place, start + place + len(old))

    bounds = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(left, ast.Add() | ast.Sub() as op, right) if not _is_text(left) and not _is_text(right):
                old, new = ("+", "-") if isinstance(op, ast.Add) else ("-", "+")
                if at := between(left, right, old):
                    yield replaced("sign", node, new, at)
                if isinstance(op, ast.Sub):
                    yield replaced("swapped arguments", node, f"({written(right)}) - ({written(left)})")
            case ast.Compare(left, [op], [right]) if type(op) in bounds:
                old, new = bounds[type(op)]
                if at := between(left, right, old):
                    yield replaced("bound", node, new, at)
            case ast.BinOp(left, ast.Mult(), right) if "mask" in written(right).lower():
                yield replaced("lost mask", node, written(left))
            case ast.Subscript(value, index) if isinstance(node.ctx, ast.Load) and "mask" in written(index).lower():
                yield replaced("lost mask", node, written(value))
            case ast.Call(ast.Attribute(attr="where" | "masked_fill"), [first, second, *_]) if "mask" in written(first):
                yield replaced("lost mask", node, written(second))
            case ast.Expr(ast.Call(called)):
                yield replaced("dropped fsync" if "fsync" in written(called) else "dropped call", node, "pass")
            case ast.Call(_, [ast.Name() as first, ast.Name() as second, *_]):
                yield replaced("swapped arguments", node, written(second), span(first))
        if isinstance(node, ast.Subscript | ast.BinOp | ast.Compare | ast.Slice):
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.Constant) and type(part.value) is int:
                    yield replaced("off by one", part, str(part.value + 1))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def drawn(seed: int) -> list[Fault]:
    """Return `HOW_MANY` faults of each kind, in the order of their files."""
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            for fault in faults_of(path):
                by_kind[fault.kind].append(fault)
    rng = random.Random(seed)
    chosen = [fault for kind, count in HOW_MANY.items() for fault in rng.sample(by_kind[kind], count)]
    return sorted(chosen, key=lambda fault: (str(fault.path), fault.start))


def probed(source: str, lines: dict[int, list[int]]) -> str:
    """Return the source with a call that reports before each statement that holds one of the lines.

    lines: numbers of faults by line. A line of no function is not probed: all tests of its file import it.
    """
    tree = ast.parse(source)
    texts = source.splitlines(keepends=True)
    before: dict[int, list[int]] = defaultdict(list)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                for statement in block if isinstance(block, list) else []:
                    # A call cannot stand before `elif`, and a definition spans statements that run later.
                    is_branch = texts[statement.lineno - 1].lstrip().startswith("elif")
                    if not is_branch and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                        before[statement.lineno].append(statement.end_lineno or statement.lineno)
    calls: dict[int, list[int]] = defaultdict(list)
    for line, numbers in lines.items():
        around = [start for start, ends in before.items() if start <= line <= max(ends)]
        if around:
            calls[max(around)] += numbers
    for start, numbers in calls.items():
        text = texts[start - 1]
        indent = text[: len(text) - len(text.lstrip())]
        texts[start - 1] = f"{indent}__import__('fault_probe').reached({numbers!r})\n{text}"
    return "".join(texts)


PROBE = """
import os
seen = set()
def reached(numbers):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (test, *numbers) not in seen:
        seen.add((test, *numbers))
        with open(os.environ["FAULT_PROBES"], "a") as file:
            file.writelines(f"{number}\\t{test}\\n" for number in numbers)
"""


def run_tests(copy: Path, words: list[str], limit_s: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in the copy, on its product.

    Raises:
        subprocess.TimeoutExpired: after the limit.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    return subprocess.run(
        [*command, "-m", "not slow and not long", *words],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "FAULT_PROBES": str(copy / "probes.txt")},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def tests_that_reach(faults: list[Fault], copy: Path) -> dict[int, list[str]]:
    """Run all fast tests once, and return those that reach each fault, by the fault's number.

    What a fixture of a whole file reaches counts for all tests of that file.
    """
    by_file: dict[Path, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, fault in enumerate(faults, start=1):
        by_file[fault.path.relative_to(ROOT)][fault.line].append(number)
    for path, lines in by_file.items():
        (copy / path).write_text(probed((ROOT / path).read_text(encoding="utf-8"), lines), encoding="utf-8")
    (copy / "fault_probe.py").write_text(PROBE, encoding="utf-8")
    (copy / "probes.txt").touch()
    run = run_tests(copy, ["-n", "2", "--dist", "worksteal"])
    print(run.stdout.splitlines()[-1], flush=True)
    for path in by_file:
        shutil.copy(ROOT / path, copy / path)
    found: dict[int, list[str]] = defaultdict(list)
    for line in (copy / "probes.txt").read_text(encoding="utf-8").splitlines():
        reached, _, test = line.partition("\t")
        name, _, phase = test.rpartition(" ")
        name = name if phase == "(call)" else name.partition("::")[0]
        if name and name not in found[int(reached)]:
            found[int(reached)].append(name)
    return found


def caught_by(fault: Fault, tests: list[str], copy: Path) -> str | None:
    """Return the first test that fails with the fault in the copy of the repository, or None if it is missed."""
    target = copy / fault.path.relative_to(ROOT)
    sound = target.read_bytes()
    target.write_bytes(sound[: fault.start] + fault.text.encode() + sound[fault.end :])
    # The tests that lie where the module lies come first: they fail soonest.
    room = str(Path("tests") / fault.path.relative_to(ROOT).parent)
    near_first = sorted(tests, key=lambda test: not test.startswith(room))
    try:
        for start in range(0, len(near_first), TESTS_AT_ONCE):
            run = run_tests(copy, ["-x", *near_first[start : start + TESTS_AT_ONCE]], LIMIT_S)
            # 5: no test was collected.
            if run.returncode not in (0, 5):
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
                return failed[1] if failed else "the collection of tests"
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s"
    finally:
        target.write_bytes(sound)
    return None


def main() -> int:
    """Print a line for each fault, and how many were caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--list", action="store_true", help="print the faults and run no test")
    options = parser.parse_args()
    faults, caught = drawn(options.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bench"
        left_out = shutil.ignore_patterns(".git", ".venv*", ".mypy_cache", ".models", "build", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=left_out)
        reach = {} if options.list else tests_that_reach(faults, copy)
        for number, fault in enumerate(faults, start=1):
            place = f"{number:2} {fault.kind:17} {fault.path.relative_to(ROOT)}:{fault.line}"
            if options.list:
                print(f"{place}  {fault.text.splitlines()[0]}")
                continue
            started = time.perf_counter()
            found = caught_by(fault, reach.get(number, []), copy)
            caught += found is not None
            print(f"{place}  {time.perf_counter() - started:.0f} s  {found or 'MISSED'}", flush=True)
    print(f"{caught} of {len(faults)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
