"""No speed: how many of 60 small faults, put into the product one at a time, the tests catch.

A fault is a sign, a bound, an off-by-one, a dropped call (half of them of fsync), two swapped arguments, or a lost
mask: ten of each, drawn with a seed. The tests that read the faulty module run first, then the rest of its folder. A
fault that both let pass counts as missed. Compare two versions of the tests only on the same product: the draw depends
on every line of it.

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
LIMIT_S = 900
"""Wall time of one run of tests. A fault that hangs them is caught."""


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


def tests_of(path: Path) -> list[list[str]]:
    """Return the test files that read the module, and then the other test files of its folder."""
    module = path.relative_to(ROOT).with_suffix("")
    package, name = ".".join(module.parts[:-1]), module.name
    reads = re.compile(
        rf"\b{re.escape(package)}\.{name}\b|from {re.escape(package)} import [^\n]*\b{name}\b".replace(r"\.", "[./]")
    )
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    near = [f for f in files if f.stem == f"test_{name}" or reads.search(f.read_text(encoding="utf-8"))]
    folder = ROOT / "tests" / module.parent
    while not folder.is_dir():
        folder = folder.parent
    rest = [f for f in files if folder in f.parents and f not in near]
    return [[str(f.relative_to(ROOT)) for f in group] for group in (near, rest) if group]


def caught_by(fault: Fault, copy: Path) -> str | None:
    """Return the first test that fails with the fault in the copy of the repository, or None if it is missed."""
    target = copy / fault.path.relative_to(ROOT)
    sound = target.read_bytes()
    target.write_bytes(sound[: fault.start] + fault.text.encode() + sound[fault.end :])
    try:
        for files in tests_of(fault.path):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
            command += ["-m", "not slow and not long", *files]
            try:
                run = subprocess.run(
                    command,
                    cwd=copy,
                    env=os.environ | {"PYTHONPATH": str(copy)},
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"no end within {LIMIT_S} s"
            # 5: no test was collected, for instance because all of a file's are slow.
            if run.returncode not in (0, 5):
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
                return failed[1] if failed else "the collection of tests"
        return None
    finally:
        target.write_bytes(sound)


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
        for number, fault in enumerate(faults, start=1):
            place = f"{number:2} {fault.kind:17} {fault.path.relative_to(ROOT)}:{fault.line}"
            if options.list:
                print(f"{place}  {fault.text.splitlines()[0]}")
                continue
            started = time.perf_counter()
            found = caught_by(fault, copy)
            caught += found is not None
            print(f"{place}  {time.perf_counter() - started:.0f} s  {found or 'MISSED'}", flush=True)
    print(f"{caught} of {len(faults)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
