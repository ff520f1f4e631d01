"""Tests for the process that runs other people's code."""

import pytest

from evals.grading.worker_process import WorkerLostError, WorkerProcess

DRIPS = """
import json, sys, time
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(json.loads(line)["dots"]):
        print(".", end="", flush=True)
        time.sleep(0.1)
    print(flush=True)
"""


@pytest.fixture
def process(tmp_path):
    program = tmp_path / "drips.py"
    program.write_text(DRIPS)
    worker = WorkerProcess("", "it needs nothing", 0, wall_limit_s=1.0, program=program)
    yield worker
    worker.close()


def test_the_time_limit_is_for_the_whole_line(process):
    with pytest.raises(WorkerLostError) as lost:
        process.reply({"dots": 30})
    assert lost.value.reason == "timeout"
    # The next request gets another process, and a line in time.
    assert process.reply({"dots": 2}) == ".."
