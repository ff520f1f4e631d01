"""Users' mistakes: one clear message on stderr, the right exit code, nothing on stdout, nothing created."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import write_sweep_file
from tests.harness.run.stages_here import without_workers
from tests.refusals import codes_of


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture
def refuse(bench: Bench, tmp_path: Path) -> Any:
    """`refuse(code, *words, **fields)`: bench refuses, says so once, and leaves no trace."""

    def call(code: str, *words: object, **fields: Any) -> Any:
        before = files(tmp_path)
        result = bench(*words)
        result.refused(code, **fields)
        assert files(tmp_path) == before
        return result

    return call


USAGE = [
    (),
    ("frobnicate",),
    ("rnu",),
    ("--frobnicate",),
    ("plan",),
    ("plan", "std_norm", "--frobnicate"),
    ("plan", "std_norm", "aa"),
    ("plan", "std_norm", "--seeds", "many"),
    ("run", "std_norm", "--workers", "0"),
    ("coldstart",),
]


def test_usage(bench: Bench) -> None:
    told = ""
    for words in USAGE:
        result = bench(*words)
        assert (result.code, result.out) == (2, "")
        first, *rest = result.err.splitlines()
        assert first.startswith("error: ") == (not rest) == bool(words), "without arguments it helps"
        told += f"bench {' '.join(words)}\n    {first}\n"
    frozen("cli/usage", told)


SOURCE = "model.source"
UNKNOWN = "bench.unknown_name"
ON_PLAN_AND_RUN: list[tuple[tuple[str, ...], str, dict[str, object]]] = [
    (("std_nrom",), "plan.no_such_file", {"what": "sweep", "given": "std_nrom", "hint": "; did you mean std_norm?"}),
    (("std_norm", "--profile", "tniy"), "plan.no_such_file", {"what": "profile", "hint": "; did you mean tiny?"}),
    (("std_norm", "--set", "train.stpes=3"), "unknown", {"path": "train.stpes"}),
    (("std_norm", "--set", "train.steps=many"), "value", {"path": "train.steps"}),
    (("std_norm", "--set", "algorithm=grop"), "value", {"path": "algorithm"}),
    (("std_norm", "--set", "task.train=arithmetik"), UNKNOWN, {"noun": "task", "name": "'arithmetik'"}),
    (("std_norm", "--set", f"{SOURCE}=path:none"), "config.folder_without_config", {"source_name": "none"}),
    (("std_norm", "--set", f"{SOURCE}=gguf:none.gguf"), "config.gguf_file_missing", {"path": "none.gguf"}),
    (("std_norm", "--set", f"{SOURCE}=biultin:tiny"), "config.unknown_source_kind", {"knob": SOURCE}),
    (("std_norm", "--set", "train.steps"), "plan.setting_without_value", {}),
    (("std_norm", "--arms", ","), "cli.not_a_name_list", {"option": "--arms"}),
]


@pytest.mark.parametrize(("words", "code", "fields"), ON_PLAN_AND_RUN)
def test_a_question_that_cannot_be_read(refuse: Any, words: tuple[str, ...], code: str, fields: Any) -> None:
    refuse(code, "plan", *words, "--json", **fields)
    refuse(code, "run", *words, **fields)


def test_no_seed_is_no_question(bench: Bench) -> None:
    result = bench("plan", "std_norm", "--seeds", "0")
    assert (result.code, result.out) == (2, "")


FAULTY = """
name: faulty
question: What is wrong here?
profile: tniy
sedes: 3
base: {algorithm: grop, task.train: arithmetik, eval.grader: numerik, train.stpes: 1, eval.samples: 0}
arms:
  good: {}
  steps: {train.steps: many, task.template: plian}
  clip: {objective.rule.clip_hgh: 3, rollout: {temperature: hot}}
  empty:
compare: {baseline: wrong, metric: eval.final.pas@1, alpha: 2}
"""


@pytest.mark.parametrize("profile", ["tniy", "tiny"])
def test_all_faults_of_a_sweep_file_are_told_at_once(bench: Bench, tmp_path: Path, profile: str) -> None:
    (tmp_path / "faulty.yaml").write_text(FAULTY.replace("tniy", profile))
    result = bench("plan", "faulty.yaml", "--arms", "goood", "--set", "train.stpes=3")
    assert (result.code, result.out) == (2, "")
    if profile == "tiny":
        frozen("cli/faults", result.err)
    else:
        assert ("plan.no_such_file", "tniy") in [(code, values.get("given")) for code, values in codes_of(result.error)]


def test_a_fault_of_one_arm_hides_none_of_another(bench: Bench, tmp_path: Path) -> None:
    arms = {"with": {"train.steps": 0}, "without": {SOURCE: "path:none"}, "third": {"algorithm": "grop"}}
    result = bench("plan", write_sweep_file(tmp_path, arms=arms, compare={"metric": "eval.final.pass@3"}))
    assert result.code == 2 and len(result.err.splitlines()) == 4
    found = {(code, values.get("path") or values.get("noun")) for code, values in codes_of(result.error)}
    assert found >= {("value", "train.steps"), ("value", "algorithm"), ("config.folder_without_config", "none")}


UNDECLARED: dict[str, Any] = {"arms": {"with": {}, "without": {"objective.scale": "none", "train.steps": 9}}}
NOOP: dict[str, Any] = {
    "ablate": ["objective.rule.clip_high"],
    "arms": {"low": {}, "high": {"objective.rule.clip_high": 0.28}},
}


@pytest.mark.parametrize("changes", [UNDECLARED, NOOP])
def test_what_the_gate_refuses_is_not_run_and_a_plan_prints_its_document(
    bench: Bench, tmp_path: Path, changes: dict[str, Any]
) -> None:
    sweep = write_sweep_file(tmp_path, **changes)
    before = files(tmp_path)
    told, planned = bench("run", sweep), bench("plan", sweep, "--json")
    assert (told.code, told.out, planned.code) == (3, "", 3)
    assert files(tmp_path) == before
    document = planned.document
    assert document["gate"]["ok"] is (changes is NOOP)
    fields = [violation["field"] for violation in document["gate"]["violations"]]
    assert fields == ([] if changes is NOOP else ["train.steps"])
    assert [noop["refused"] for noop in document["noops"]] == ([True] if changes is NOOP else [])
    if changes is UNDECLARED:
        assert document["gate"]["violations"][0]["values"]["without"] == 9
    frozen(f"cli/gate_{'noop' if changes is NOOP else 'violation'}", told.err)


def test_a_noop_that_is_allowed_or_can_act_is_planned(bench: Bench, tmp_path: Path) -> None:
    allowed = bench("plan", write_sweep_file(tmp_path, **NOOP, allow_noop=True), "--json")
    assert allowed.code == 0 and any("low" in one and "high" in one for one in allowed.document["warnings"])
    assert bench("plan", write_sweep_file(tmp_path, **NOOP), "--set", "train.updates_per_rollout=2").code == 0


@pytest.mark.parametrize(
    ("content", "code", "fields"),
    [
        (b"- a list\n", "evals.yaml_not_mapping", {}),
        (b"name: mine\nname: yours\n", "evals.in_file", {}),
        (b"name: [\n", "evals.invalid_yaml", {}),
        (b"question: caf\xe9\n", "evals.file_not_utf8", {}),
        (b"name: mine\nsedes: 3\n", "extra_forbidden", {"path": "sedes"}),
    ],
)
def test_a_file_that_is_no_sweep(refuse: Any, tmp_path: Path, content: bytes, code: str, fields: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    assert refuse(code, "plan", path, **fields).err.startswith(f"error: {path}: ")


def test_a_folder_is_no_sweep(refuse: Any, tmp_path: Path) -> None:
    refuse("plan.no_such_file", "plan", tmp_path)


TASK = "name: words\ngrader: numeric\nsplits:\n  train: {{file: train.jsonl{pin}}}\n  test: {{file: test.jsonl{pin}}}\n"


@pytest.mark.parametrize("pin", ["", f", digest: 'sha256:{'0' * 64}'"])
def test_missing_data_of_a_task_of_ones_own(bench: Bench, tmp_path: Path, pin: str) -> None:
    """Where a digest is pinned, planning needs no data: only the run misses them."""
    task = tmp_path / "words.yaml"
    task.write_text(TASK.format(pin=pin))
    trained_on = ("std_norm", "--set", f"task.train={task}")
    for words, split in (
        (("run", *trained_on), "train"),
        (("run", "std_norm", "--set", f"eval.tasks=[{task}]"), "test"),
        (("plan", *trained_on), None if pin else "train"),
    ):
        result = bench(*words)
        assert result.code == (2 if split else 0)
        assert (f"{tmp_path / f'{split}.jsonl'}" in result.err) == bool(split), "where it looked"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["words.yaml"]


GOOD_PAIR = {"prompt": "1+1=", "chosen": "2#2", "rejected": "3#3"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "told"),
    [
        (GOOD_PAIR | {"rejected": "2#2"}, "evals.completions_equal"),
        ({"prompt": "1+1=", "chosen": "2#2"}, "evals.pair_field_missing"),
        (GOOD_PAIR | {"chosen": 2}, None),
        (GOOD_PAIR | {"prompt": "1+" * 100 + "1="}, "202"),  # tokens; told by a worker, without a code
    ],
)
def test_a_faulty_pair_is_named_by_its_file_and_line(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], told: str | None
) -> None:
    without_workers(monkeypatch)
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in (GOOD_PAIR, GOOD_PAIR, row)))
    result = bench("run", write_sweep_file(tmp_path, **offline(file)))
    assert (result.code, result.out) == (2, "")
    assert "pairs.jsonl, line 3: " in result.err and "Traceback" not in result.err
    assert told is None or told in [one for one, _ in codes_of(result.error)] or told in result.err
    assert not [path for path in tmp_path.rglob("status.json") if "pending" not in path.read_text()]


def offline(file: Path) -> dict[str, Any]:
    pairs = {"type": "dataset", "data": str(file), "pairs_per_step": 2, "max_tokens": 60}
    return {"base": {"algorithm": "dpo", "pairs": pairs}, "arms": {"a": {}, "b": {"objective.beta": 1.0}}} | {
        "ablate": ["objective.beta"],
        "seeds": 1,
    }


@pytest.mark.parametrize(
    ("setting", "code", "fields"),
    [
        ("pairs.data=none.jsonl", "evals.pairs_file_missing", {"source": "none.jsonl"}),
        ("pairs.data=hub:someone/pairs", "evals.hub_pairs_not_pinned", {}),
        ("pairs.split=test", "evals.split_of_pairs_file", {"split": "test"}),
        ("pairs.pairing=all", "unknown", {"path": "pairs.pairing"}),
        ("objective.reference=round_start", "clash", {}),
    ],
)
def test_a_question_about_pairs_that_makes_no_sense(
    refuse: Any, tmp_path: Path, setting: str, code: str, fields: Any
) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(GOOD_PAIR)}\n" for _ in range(3)))
    refuse(code, "run", write_sweep_file(tmp_path, **offline(file)), "--set", setting, **fields)


@pytest.mark.parametrize("home", ["file", "file/below"])
def test_a_home_that_is_no_folder(bench: Bench, tmp_path: Path, home: str) -> None:
    (tmp_path / "file").write_text("in the way")
    bench("run", "std_norm", "--home", home).refused("run.folder_not_writable")
    assert bench("plan", "aa", "--home", home).code == 0
    assert bench("ls", "runs", "--home", home, "--json").document == []
    bench("status", "aa", "--home", home).refused("bench.no_records_of_sweep")
    assert files(tmp_path) == {str(tmp_path / "file"): b"in the way"}


@pytest.mark.parametrize("verb", ["status", "report", "sync"])
def test_a_sweep_that_was_never_run(refuse: Any, verb: str) -> None:
    refuse("bench.no_records_of_sweep", verb, "std_norm", "--json")


def test_cp_never_overwrites(refuse: Any, tmp_path: Path) -> None:
    for name in ("mine.yaml", "std_norm.yaml"):
        (tmp_path / name).write_text("mine")
    refuse("cli.target_exists", "cp", "std_norm", "mine.yaml", path="mine.yaml")
    refuse("cli.target_exists", "cp", "std_norm", path="std_norm.yaml")
    refuse("cli.target_not_writable", "cp", "std_norm", "none/mine.yaml", path="mine.yaml")
    refuse(UNKNOWN, "cp", "std_nrom", name="'std_nrom'")


def test_coldstart_leaves_a_folder_alone_and_reads_its_recipe_first(refuse: Any, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    refuse("cli.out_folder_exists", "coldstart", "--out", "old", out="old")
    refuse("evals.yaml_file_unreadable", "coldstart", "--out", "new", "none.yaml", path="none.yaml")
    (tmp_path / "recipe.yaml").write_text(json.dumps({"source": "scratch:tiny", "cold_start": {"stesp": 3}}))
    refuse("missing", "coldstart", "--out", "new", "recipe.yaml", path="cold_start.data")
