"""Several processes that share a sweep, as one of them sees it: it trains nothing, and the others are played."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.config.hashing import evaluation_hash
from harness.config.run_spec import RunSpec
from harness.config.train import BudgetSpec
from harness.errors import RefusedError
from harness.executors.base import Ended, Job, JobState, Progress
from harness.plan import Plan, make_plan
from harness.records import CellRecord, read_sweep
from harness.records import lease as lease_module
from harness.records.cell import EVALUATION_FILE
from harness.records.files import append_jsonl, read_json, write_json
from harness.records.lease import STALE_AFTER_S, hold_lease
from harness.run import shared_sweep
from harness.run.shared_sweep import WorkerRun
from tests.harness.plan.files import write_sweep_file
from tests.harness.records.test_lease import FakeClock, stopped_owner
from tests.harness.run.stages_here import AllHere, Quiet
from tests.refusals import refuses


def write_as_done(cell: CellRecord, spec: RunSpec) -> None:
    write_json(cell.path / EVALUATION_FILE, {"hash": evaluation_hash(spec), "tasks": {}})
    cell.write_status("done")


@dataclass
class Told(Quiet):
    """An observer that remembers."""

    fractions: list[Mapping[str, float]] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)

    def elsewhere(self, fractions: Mapping[str, float]) -> None:
        self.fractions.append(fractions)

    def ended(self, name: str, state: str, reason: str | None) -> None:
        self.ends[name] = state


class Done(AllHere):
    """An executor that does jobs at once: stages leave an empty result, cells end as `ends` says, else done. `later`
    happens in its next waits, one at a time."""

    def __init__(
        self, home: Path, ends: dict[str, list[JobState]] | None = None, later: Sequence[Callable[[], Any]] = ()
    ) -> None:
        super().__init__(home)
        self.ends, self.later = ends or {}, [*later]

    def _do(self, job: Job) -> tuple[JobState, str | None]:
        state: JobState = "done"
        if job.kind == "cell":
            cell = CellRecord.at(self.home / job.path)
            with hold_lease(cell.path, job=job.id):
                state = (self.ends.get(f"{cell.arm}-s{cell.seed}") or ["done"]).pop(0)
            if state == "done":
                write_as_done(cell, job.spec)
        elif job.kind != "load":
            write_json(self.home / job.path, [])
        return state, None if state == "done" else "as the test says"

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        if not self._events and self.later:
            self.later.pop(0)()
        return super().wait(timeout_s)


@dataclass
class Others:
    """A plan of four cells, and what other processes do of it."""

    plan: Plan
    home: Path
    held: ExitStack

    def cell(self, name: str) -> CellRecord:
        arm, _, seed = name.partition("-s")
        return next(
            record
            for record in (self.plan.record(cell, self.home) for cell in self.plan.cells)
            if (record.arm, record.seed) == (arm, int(seed))
        )

    def hold(self, name: str) -> Callable[[], None]:
        """Run a cell; returns what ends it."""
        self.cell(name).path.mkdir(parents=True, exist_ok=True)
        lease = ExitStack()
        lease.enter_context(hold_lease(self.cell(name).path))
        self.held.push(lease)

        def end() -> None:
            write_as_done(self.cell(name), self.plan.arms[name.partition("-s")[0]])
            lease.close()

        return end


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(str(write_sweep_file(tmp_path_factory.mktemp("plan"), seeds=2)))


@pytest.fixture
def others(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    monkeypatch.setattr(shared_sweep, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(shared_sweep, "_LOOK_SHARE", math.inf)
    with ExitStack() as held:
        yield Others(plan, tmp_path / "home", held)


def run(others: Others, executor: Done, **options: Any) -> tuple[Told, WorkerRun]:
    told = Told()
    work = WorkerRun(others.plan, others.home, "bench run mine", 1, lambda slots: executor, **options)
    work.run(told)
    return told, work


def test_one_alone_does_all_and_then_what_only_the_report_needs(others: Others) -> None:
    told, work = run(others, executor := Done(others.home))
    assert work.ran == told.ends == dict.fromkeys(["with-s0", "with-s1", "without-s0", "without-s1"], "done")
    assert [job.kind for job in executor.jobs] == ["load", *["cell"] * 4, "base"]
    assert run(others, executor := Done(others.home))[1].ran == {}
    assert executor.jobs == []


def test_it_ends_once_others_run_all_that_is_left(others: Others) -> None:
    others.hold("with-s1")
    append_jsonl(others.cell("with-s1").path / "steps.jsonl", [{"step": 30, "generated_tokens": 0}])
    told, work = run(others, Done(others.home))
    assert [*work.ran.values()] == ["done"] * 3 and "with-s1" not in work.ran
    frac = 30 / others.plan.first_spec.train.steps
    assert told.fractions[0] == told.fractions[-1] == {"with-s1": pytest.approx(frac)}


def test_or_waits_until_these_have_ended_too_and_does_what_they_leave(others: Others) -> None:
    end, _ = others.hold("with-s1"), others.hold("without-s1")
    others.cell("without-s1").write_status("interrupted")
    told, work = run(others, Done(others.home, later=[end, others.held.close]), waits=True)
    assert set(told.ends.values()) == {"done"} and len(told.ends) == 4
    assert work.ran == dict.fromkeys(["with-s0", "without-s0", "without-s1"], "done")


def test_a_cell_that_fails_is_tried_by_one_only(others: Others) -> None:
    def failed_elsewhere() -> None:
        others.cell("with-s0").write_status("failed", reason="no memory")

    others.hold("with-s0")
    executor = Done(others.home, {"with-s1": ["failed"]}, [failed_elsewhere, others.held.close])
    told, work = run(others, executor, waits=True)
    assert told.ends == {"with-s0": "failed", "with-s1": "failed", "without-s0": "done", "without-s1": "done"}
    assert work.ran == {"with-s1": "failed", "without-s0": "done", "without-s1": "done"}
    assert len(executor.jobs) == 1 + 3 + 1
    again, _ = run(others, Done(others.home))
    assert again.ends == {"with-s0": "done", "with-s1": "done"}, "the next one tries once more"


def test_retried_it_is_not_taken_for_one_that_failed_elsewhere(others: Others) -> None:
    told, _ = run(others, Done(others.home, {"with-s1": ["failed", "done"]}), retry_failed=True)
    assert set(told.ends.values()) == {"done"}


def test_one_that_somebody_was_quicker_to_take_comes_back(others: Others) -> None:
    told, work = run(others, executor := Done(others.home, {"with-s1": ["taken", "done"]}))
    assert set(told.ends.values()) == set(work.ran.values()) == {"done"}
    assert [job.kind for job in executor.jobs].count("cell") == 5


@contextmanager
def watched_by(clock: FakeClock) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lease_module.HERE, "clock", clock)
        yield


def test_the_cell_of_a_machine_that_died_is_taken_after_the_limit_and_no_sooner(others: Others) -> None:
    cell = others.cell("without-s0")
    cell.path.mkdir(parents=True)
    clock = FakeClock()

    def pass_time() -> None:
        clock.now_s += 1

    with watched_by(clock), stopped_owner(cell.path):
        executor = Done(others.home, later=[pass_time] * int(STALE_AFTER_S + 5))
        _, work = run(others, executor)
    assert set(work.ran.values()) == {"done"} and len(work.ran) == 4
    assert clock.now_s == pytest.approx(STALE_AFTER_S, abs=2)
    assert read_json(cell.path / "lease.json")["epoch"] == 3, "taken back here, then by who does it"


def test_the_cell_of_a_machine_that_lives_is_left_after_a_sign_of_life(others: Others) -> None:
    cell = others.cell("without-s0")
    cell.path.mkdir(parents=True)
    with watched_by(clock := FakeClock()), stopped_owner(cell.path) as owner:
        _, work = run(others, Done(others.home, later=[lambda: None, lambda: None, owner.beat, lambda: None]))
    assert "without-s0" not in work.ran and len(work.ran) == 3
    assert clock.now_s == 0


def test_who_asks_otherwise_is_refused_while_cells_run(others: Others, tmp_path: Path) -> None:
    run(others, Done(others.home))
    sweep = str(write_sweep_file(tmp_path, seeds=2))
    fewer, other = make_plan(sweep, seeds=1), make_plan(sweep, settings=["train.steps=7"])
    end = others.hold("with-s1")
    for plan, why in ((fewer, "seeds"), (other, "settings")):
        with refuses(RefusedError, "run.another_question_runs", running="with-s1", command="bench run mine") as refused:
            WorkerRun(plan, others.home, "bench run mine", 1, lambda slots: Done(others.home)).run(Told())
        assert why in str(refused.value.fields["why"])
        assert len(read_sweep(plan.folder(others.home)).cells) == 4
    end()
    WorkerRun(fewer, others.home, "bench run mine", 1, lambda slots: Done(others.home)).run(Told())
    assert len(read_sweep(fewer.folder(others.home)).cells) == 2


@pytest.mark.parametrize("budget", ["tokens", "trained_tokens", "flops"])
def test_a_cell_elsewhere_is_as_far_as_its_most_used_budget(others: Others, budget: str) -> None:
    others.hold("with-s1")
    spent = {"generated_tokens": 0, "trained_tokens": 0} | {"generated_tokens" if budget == "tokens" else budget: 60}
    append_jsonl(others.cell("with-s1").path / "steps.jsonl", [{"step": 1, **spent}])
    limits = {"budget": BudgetSpec(**{budget: 80})}
    cells = [replace(cell, spec=cell.spec.model_copy(update=limits)) for cell in others.plan.cells]
    told, _ = run(replace(others, plan=replace(others.plan, cells=cells)), Done(others.home))
    assert told.fractions[0] == {"with-s1": pytest.approx(0.75)}
