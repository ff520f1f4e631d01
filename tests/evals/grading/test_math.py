from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from evals.errors import EvalError
from evals.graders import grade
from evals.grading import math as math_grader
from evals.grading.math import MathPool, MathProcess
from tests.refusals import refuses

pytestmark = pytest.mark.slow


@pytest.fixture
def process():
    process = MathProcess(cpu_limit_s=1.0)
    yield process
    process.close()


@pytest.fixture
def pool():
    pool = MathPool(cpu_limit_s=1.0)
    yield pool
    pool.close()


def test_outcomes(process):
    assert process.compare("x+1", "1+x") == "match"
    assert process.compare("x+1", "x+2") == "mismatch"
    assert process.compare("\\frac{", "x") == "unparsed"


@pytest.mark.parametrize(
    "candidate",
    [
        "9**9**9**9",
        "9^{9^{9^{9}}}",
        "{" * 10_000 + "1" + "}" * 10_000,
        "{" * 2_000 + "1" + "}" * 2_000,
        "(" * 2_000 + "1" + ")" * 2_000,
        "\\sqrt{" * 500 + "1" + "}" * 500,
        "9" * 1_000_000,
        "9" * 4_900,
        "1+" * 2_400 + "1",
        "\x00",
        "1\x002",
        "\ud800",
        "\\frac{1}{0}",
        "10^{10^{9}}!",
        "$" * 1001,
    ],
    ids=lambda candidate: ascii(candidate[:12]),
)
def test_survives(process, candidate):
    process.compare("x", "y")
    start = time.monotonic()
    assert process.compare(candidate, "12") in {"mismatch", "unparsed", "timeout", "crash"}
    assert time.monotonic() - start < 15  # 1 s of processor time, on a busy machine
    assert process.compare("x+1", "1+x") == "match"


def test_a_timeout_is_a_verdict_of_its_own(pool, monkeypatch):
    monkeypatch.setattr(math_grader, "POOL", pool)
    verdict = grade("\\boxed{9^{9^{9^{9}}}}", "1")
    assert (verdict.correct, verdict.reason) == (False, "timeout")


def test_a_worker_that_never_computes_is_given_up():
    process = MathProcess(wall_limit_s=2.0)
    assert process.compare("x+1", "1+x") == "match"
    worker = process._running()
    os.kill(worker.pid, signal.SIGSTOP)
    assert process.compare("\U0001f600" * 4_999, "1") == "timeout"
    assert process.compare("x+1", "1+x") == "match"
    assert worker.returncode == -signal.SIGKILL
    process.close()


def test_a_worker_that_dies_in_a_comparison_is_a_crash(process):
    process.compare("x", "y")
    os.kill(process._running().pid, signal.SIGSTOP)  # so that it is killed before it can reply
    threading.Timer(0.3, os.kill, (process._running().pid, signal.SIGKILL)).start()
    assert process.compare("x+1", "1+x") == "crash"
    assert process.compare("x+1", "1+x") == "match"


def test_a_worker_that_died_between_comparisons_is_replaced(process):
    process.compare("x", "y")
    worker = process._running()
    worker.kill()
    worker.wait()
    assert process.compare("x+1", "1+x") == "match"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
def test_memory_is_limited(process):
    process.compare("x", "y")
    limit = (math_grader.MEMORY_BYTES, math_grader.MEMORY_BYTES)
    assert resource.prlimit(process._running().pid, resource.RLIMIT_AS) == limit


def test_threads_share_a_worker(process):
    pairs = [(f"x+{i}", f"{i}+x" if i % 2 else f"{i}-x") for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda pair: process.compare(*pair), pairs))
    assert outcomes == ["match" if i % 2 else "mismatch" for i in range(40)]


def test_one_thread_needs_one_worker_and_two_share_two(pool):
    for number in range(3):
        assert pool.compare(f"x+{number}", f"{number}+x") == "match"
    assert [worker._worker is not None for worker in pool.workers] == [True, False]
    pairs = [(f"x-{number}", f"{number}-x" if number % 2 else f"-{number}+x") for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda pair: pool.compare(*pair), pairs))
    assert outcomes == ["mismatch" if number % 2 else "match" for number in range(40)]
    assert [worker._worker is not None for worker in pool.workers] == [True, True]


@pytest.mark.parametrize(("pairs", "asked"), [("ab ab cb cb ac ab", "acca"), ("ax bx cx dx cx bx dx ax", "abcda")])
def test_a_few_pairs_are_compared_once_but_a_crash_again(pool, monkeypatch, pairs, asked):
    compared = []
    monkeypatch.setattr(math_grader, "MAX_REMEMBERED", 3)

    def compare(worker, candidate, answer):
        compared.append(candidate)
        return "crash" if (candidate, answer) == ("c", "b") else "match"

    monkeypatch.setattr(MathProcess, "compare", compare)
    outcomes = [pool.compare(*pair) for pair in pairs.split()]
    assert outcomes == ["crash" if pair == "cb" else "match" for pair in pairs.split()]
    assert "".join(compared) == asked


def test_a_worker_that_cannot_start_is_given_back(pool, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        for _ in range(3):
            with refuses(EvalError, "evals.worker_not_started"):
                pool.compare("x+1", "1+x")
    assert pool.compare("x+1", "1+x") == "match"


def test_a_forked_child_starts_its_own_workers(pool):
    pool.compare("x", "y")
    ours = pool.workers[0]._running().pid
    child = os.fork()
    if child == 0:  # pragma: no cover
        pool.forget()
        right = pool.compare("x+2", "2+x") == "match" and pool.workers[0]._running().pid != ours
        pool.close()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.compare("x+3", "3+x") == "match"
    assert pool.workers[0]._running().pid == ours


def test_the_users_script_is_not_imported_and_the_worker_ends_with_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "print('started', flush=True)\n"
        "from evals import grade\n"
        "from evals.grading.math import POOL\n"
        "assert grade('\\\\boxed{x+1}', '1+x').correct\n"
        "print(POOL.workers[0]._running().pid)\n"
    )
    # Modules beside the script must not shadow what the worker imports.
    (tmp_path / "math_verify.py").write_text("raise SystemExit(1)")
    result = subprocess.run(
        [sys.executable, "-P", str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    started, pid = result.stdout.split()
    assert (started, result.stderr) == ("started", "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
