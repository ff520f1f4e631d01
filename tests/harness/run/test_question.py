"""What a sweep's folder keeps of its question."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness import plugins
from harness.config.model_source import TINY
from harness.plan import make_plan
from harness.plan.sweep_file import SHIPPED
from harness.records import read_sweep
from harness.records.files import write_json
from harness.records.schema import OtherVersionError
from harness.run.question import require_same_kind, write_question
from tests.refusals import refuses

SWEEP = """
name: moved
question: Is the folder enough?
profile: tiny
plugins: [lab_preset]
ablate: [reward.parts]
base: {algorithm: lab_grpo, task.template: terse.yaml}
arms:
  plain: {}
  brief: {"reward.parts.my_reward:brief": 0.1}
seeds: 1
"""
EXAMPLES = Path(__file__).parents[2] / "examples" / "extending"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    plugins.use([], [])


def test_a_folder_can_be_asked_where_the_users_files_are_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-in, the reward function with what it imports, and the template: by the hashes of all cells."""
    here, there = folder / "here", folder / "there"
    here.mkdir()
    (here / "sweep.yaml").write_text(SWEEP)
    shutil.copy(EXAMPLES / "preset.py", here / "lab_preset.py")
    shutil.copy(EXAMPLES / "template.yaml", here / "terse.yaml")
    (here / "my_reward.py").write_text("from my_scale import SCALE\n\ndef brief(group, context):\n    return []\n")
    (here / "my_scale.py").write_text("SCALE = 2\n")
    plan = make_plan(str(here / "sweep.yaml"))
    hashes = {(cell.arm, cell.seed): cell.hash for cell in plan.cells}
    write_question(plan, folder / "home", "bench run")

    shutil.move(folder / "home", there)
    shutil.rmtree(here)
    monkeypatch.chdir(there)
    again = make_plan(str(there / "moved"))
    assert {(cell.arm, cell.seed): cell.hash for cell in again.cells} == hashes


def test_more_seeds_samples_or_problems_ask_the_same_question(tmp_path: Path) -> None:
    def asked(*settings: str, seeds: int = 1, arms: tuple[str, ...] = ()) -> str:
        write_question(make_plan("std_norm", None, settings, seeds, arms), tmp_path, "bench run")
        return read_sweep(tmp_path / "std_norm").asks

    first = asked()
    assert first == asked("eval.samples=64", "eval.problems=300", seeds=3)
    assert len({first, asked("train.steps=9"), asked("eval.temperature=0.5"), asked(arms=("group_std", "no_std"))}) == 4


def test_a_task_of_ones_own_is_compared_by_its_name_and_loaded_by_its_file(tmp_path: Path) -> None:
    task = tmp_path / "mine.yaml"
    task.write_text("name: sums\ngrader: numeric\nsplits: {test: {file: rows.jsonl}}\n")
    (tmp_path / "rows.jsonl").write_text('{"problem": "1+2", "answer": "3"}\n{"problem": "2+2", "answer": "4"}\n')
    write_question(make_plan("std_norm", None, [f"eval.tasks=[{task}]"], 1), tmp_path, "bench run")
    assert read_sweep(tmp_path / "std_norm").metric == "eval.final.sums.pass@1"


@pytest.mark.slow
def test_fewer_arms_and_more_tasks_compare_the_same_contrast(tmp_path: Path) -> None:
    def contrasts(*settings: str, arms: tuple[str, ...] = ()) -> set[str]:
        write_question(make_plan("std_norm", None, settings, 1, arms), tmp_path, "bench run")
        return {*read_sweep(tmp_path / "std_norm").contrasts}

    first = contrasts()
    assert len(first) == 2
    assert first == contrasts("eval.samples=64", "eval.tasks=[arithmetic,arithmetic_many]")
    assert contrasts(arms=("group_std", "no_std")) < first
    assert contrasts("train.steps=9").isdisjoint(first)


@pytest.mark.slow
def test_a_checkpoint_is_looked_for_beside_the_sweep_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the question is asked again from its records, which hold a copy of the file."""
    here = tmp_path / "here"
    shutil.copytree(TINY, here / "models" / "mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    sweep = yaml.safe_load((SHIPPED / "decoding.yaml").read_text())
    for given in ("models/mine", "path:models/mine"):
        (here / "asked.yaml").write_text(yaml.safe_dump(sweep | {"checkpoint": given}))
        plan = make_plan(str(here / "asked.yaml"), seeds=1)
        assert plan.first_spec.model.source == f"path:{here / 'models' / 'mine'}"
        for _ in range(2):
            write_question(plan, tmp_path / "home", "bench run")
            plan = make_plan(str(tmp_path / "home" / "decoding"), seeds=1)
            assert plan.first_spec.model.source == f"path:{here / 'models' / 'mine'}"
    shutil.move(here / "models", elsewhere)  # the current folder comes first
    assert make_plan(str(here / "asked.yaml"), seeds=1).first_spec.model.source == "path:models/mine"


def test_records_of_another_version_are_not_written_over(tmp_path: Path) -> None:
    write_json(tmp_path / "sweep.json", {"schema": 3})
    with refuses(OtherVersionError, "records.development_version"):
        require_same_kind(tmp_path, is_search=False)
