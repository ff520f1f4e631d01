"""Users' mistakes: one clear message on stderr, the right exit code, nothing on stdout, nothing created."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli.conftest import Bench, Result
from tests.harness.plan.files import write_sweep_file
from tests.harness.run.stages_here import without_workers


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture
def refuse(bench: Bench, tmp_path: Path) -> Any:
    """`refuse(code, says, *words)`: bench refuses, says so once, and leaves no trace."""

    def call(code: int, says: str, *words: object) -> Result:
        before = files(tmp_path)
        result = bench(*words)
        assert result.code == code, result.err
        assert says in result.err
        assert result.err.count("rror: ") == 1
        assert "Traceback" not in result.err
        assert files(tmp_path) == before
        return result

    return call


USAGE = [
    (("frobnicate",), "no such command 'frobnicate'. `bench --help` shows what it takes."),
    (("rnu",), "no such command 'rnu'. Did you mean 'run'? `bench --help` shows"),
    (("--frobnicate",), "no such option: --frobnicate. `bench --help` shows"),
    (("plan",), "missing argument 'sweep'. `bench plan --help` shows"),
    (("plan", "std_norm", "--frobnicate"), "no such option: --frobnicate. `bench plan --help` shows"),
    (("plan", "std_norm", "aa"), "unexpected extra argument"),
    (("plan", "std_norm", "--seeds", "many"), "--seeds is 'many': input should be a valid integer"),
    (("run", "std_norm", "--workers", "0"), "--workers is '0': input should be greater than or equal to 1."),
    (("ls", "sweps"), "unknown kind of thing 'sweps'; did you mean sweeps? `bench ls --help` lists all."),
    (("coldstart",), "missing option '--out'. `bench coldstart --help` shows"),
]


@pytest.mark.parametrize(("words", "says"), USAGE)
def test_usage(refuse: Any, words: tuple[str, ...], says: str) -> None:
    result = refuse(2, says, *words)
    assert result.out == "" and result.err.startswith("error: ") and result.err.count("\n") == 1


def test_without_arguments_it_helps_and_exits_2(bench: Bench) -> None:
    result = bench()
    assert result.code == 2
    assert "Usage: bench" in result.err
    assert "Traceback" not in result.err


ON_PLAN_AND_RUN = [
    (("std_nrom",), "sweep 'std_nrom': there is no such file and no shipped sweep of that name; did you mean std_norm"),
    (("std_norm", "--profile", "tniy"), "did you mean tiny?"),
    (("std_norm", "--set", "train.stpes=3"), "--set: unknown key train.stpes; did you mean train.steps"),
    (("std_norm", "--set", "train.steps=many"), "--set: train.steps is 'many': input should be a valid integer."),
    (("std_norm", "--set", "algorithm=grop"), "unknown algorithm 'grop'; did you mean grpo"),
    (("std_norm", "--set", "task.train=arithmetik"), "unknown task 'arithmetik'; did you mean arithmetic"),
    (("std_norm", "--set", "model.source=path:none"), "path:none: no config.json in none. Give a folder"),
    (("std_norm", "--set", "model.source=gguf:none.gguf"), "gguf:none.gguf: there is no such file. Give the path"),
    (("std_norm", "--set", "model.source=tiny"), "must be builtin:tiny, hf:<id>"),
    (("std_norm", "--set", "model.source=biultin:tiny"), "did you mean builtin?"),
    (("std_norm", "--set", "train.steps"), "must be key=value, e.g. --set train.steps=20."),
    (("std_norm", "--seeds", "0"), "--seeds is 0, but at least 1 seed is needed."),
    (("std_norm", "--arms", "no_sdt"), "unknown arm 'no_sdt'; did you mean no_std"),
    (("std_norm", "--arms", ","), "--arms is ',', but must be one or more names"),
]


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.parametrize(("words", "says"), ON_PLAN_AND_RUN)
def test_a_question_that_cannot_be_read(refuse: Any, verb: str, words: tuple[str, ...], says: str) -> None:
    assert refuse(2, says, verb, *words).out == ""
    assert refuse(2, says, verb, *words, "--json").out == ""


FAULTY = """
name: faulty
question: What is wrong here?
profile: tniy
sedes: 3
base: {algorithm: grop, task.train: arithmetik, eval.grader: numerik}
arms:
  good: {}
  steps: {train.steps: many, task.template: plian}
  clip: {objective.rule.clip_hgh: 3}
  empty:
compare: {baseline: wrong, metric: eval.final.pas@1, alpha: 2}
"""


@pytest.mark.parametrize(
    ("profile", "says"), [("tniy", ["profile 'tniy': there is no such file and no shipped profile"]), ("tiny", [])]
)
def test_all_faults_of_a_sweep_file_are_told_at_once(
    refuse: Any, tmp_path: Path, profile: str, says: list[str]
) -> None:
    (tmp_path / "faulty.yaml").write_text(FAULTY.replace("tniy", profile))
    expected = [
        *says,
        "faulty.yaml: sedes is not a key here; did you mean seeds",
        "faulty.yaml: arms.empty is None: input should be a mapping, e.g. {}",
        "faulty.yaml: compare.metric: unknown metric 'pas@1'; did you mean pass@",
        "faulty.yaml: compare.alpha is 2: input should be less than 1",
        "faulty.yaml: compare.baseline: unknown arm 'wrong'. There are good, steps, clip, empty.",
        "faulty.yaml: base: unknown algorithm 'grop'; did you mean grpo",
        "faulty.yaml: base: task.train: unknown task 'arithmetik'; did you mean arithmetic",
        "faulty.yaml: base: eval.grader: unknown grader 'numerik'; did you mean numeric?",
        "faulty.yaml: arms.steps: train.steps is 'many': input should be a valid integer.",
        "faulty.yaml: arms.steps: task.template: unknown template 'plian'; did you mean plain?",
        "faulty.yaml: arms.clip: unknown key objective.rule.clip_hgh; did you mean objective.rule.clip_high",
        "--arms: unknown arm 'goood'; did you mean good?",
        "--set: unknown key train.stpes; did you mean train.steps",
    ]
    given = ("faulty.yaml", "--arms", "goood", "--set", "train.stpes=3")
    lines = refuse(2, expected[0], "plan", *given).err.removeprefix("error: ").splitlines()
    missing = [text for text in expected if not any(line.startswith(text) for line in lines)]
    assert not missing
    assert len(lines) == len(expected), "a fault that is none, or one that is told twice"


def test_a_fault_of_one_arm_hides_none_of_another(refuse: Any, tmp_path: Path) -> None:
    arms = {"with": {"train.steps": 0}, "without": {"model.source": "path:none"}, "third": {"algorithm": "grop"}}
    sweep = write_sweep_file(tmp_path, arms=arms, compare={"metric": "eval.final.pass@3"})
    lines = refuse(2, "arms.with: train.steps is 0", "plan", sweep).err.splitlines()
    assert len(lines) == 4
    assert "arms.third: unknown algorithm 'grop'" in lines[1]
    assert "path:none: no config.json in none" in lines[2]
    assert "compare.metric: unknown metric 'pass@3'" in lines[3]


UNDECLARED: dict[str, Any] = {"arms": {"with": {}, "without": {"objective.scale": "none", "train.steps": 9}}}
NOOP: dict[str, Any] = {
    "ablate": ["objective.rule.clip_high"],
    "arms": {"low": {}, "high": {"objective.rule.clip_high": 0.28}},
}


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_an_undeclared_difference(refuse: Any, tmp_path: Path, verb: str) -> None:
    sweep = write_sweep_file(tmp_path, **UNDECLARED)
    result = refuse(3, "The gate refuses", verb, sweep)
    assert "without = 9" in result.err
    assert "train.steps: with = " in result.err


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_only_knobs_that_cannot_act(refuse: Any, tmp_path: Path, verb: str) -> None:
    sweep = write_sweep_file(tmp_path, **NOOP)
    result = refuse(3, "The no-op guard refuses", verb, sweep)
    assert "every ratio is 1, inside any clip range" in result.err


@pytest.mark.parametrize("changes", [UNDECLARED, NOOP])
def test_a_refused_plan_prints_its_document_all_the_same(refuse: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    document = refuse(3, "refuses", "plan", write_sweep_file(tmp_path, **changes), "--json").document
    assert document["gate"]["ok"] is (changes is NOOP)
    fields = [violation["field"] for violation in document["gate"]["violations"]]
    assert fields == ([] if changes is NOOP else ["train.steps"])
    assert [noop["refused"] for noop in document["noops"]] == ([True] if changes is NOOP else [])
    if changes is UNDECLARED:
        assert document["gate"]["violations"][0]["values"]["without"] == 9


def test_a_noop_that_is_allowed_or_can_act_is_planned(bench: Bench, tmp_path: Path) -> None:
    allowed = bench("plan", write_sweep_file(tmp_path, **NOOP, allow_noop=True))
    assert allowed.code == 0
    assert "warning: arms low and high cannot differ" in allowed.out
    assert bench("plan", write_sweep_file(tmp_path, **NOOP), "--set", "train.updates_per_rollout=2").code == 0


def test_every_mistake_of_a_sweep_file_at_once(refuse: Any, tmp_path: Path) -> None:
    base = {"algorithm": "grpo", "train.stpes": 1, "eval.samples": 0}
    arms = {"a": {"objective.scale": "sdt"}, "b": {"rollout": {"temperature": "hot"}}}
    sweep = write_sweep_file(tmp_path, base=base, arms=arms)
    err = refuse(2, f"{sweep}: base: unknown key train.stpes", "plan", sweep).err
    for text in (
        f"{sweep}: base: eval.samples is 0",
        f"{sweep}: arms.a: objective.scale is 'sdt'",
        f"{sweep}: arms.b: rollout.temperature is 'hot'",
    ):
        assert text in err
    assert len(err.splitlines()) == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"- a list\n", "holds list, but must be a mapping"),
        (b"name: mine\nname: yours\n", "key 'name' is given twice"),
        (b"name: [\n", "is not valid YAML"),
        (b"question: caf\xe9\n", "is not UTF-8 text"),
        (b"name: mine\nsedes: 3\n", "sedes is not a key here; did you mean seeds"),
    ],
)
def test_a_file_that_is_no_sweep(refuse: Any, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    assert f"error: {path}: " in refuse(2, says, "plan", path).err


def test_a_folder_is_no_sweep(refuse: Any, tmp_path: Path) -> None:
    refuse(2, "there is no such file and no shipped sweep", "plan", tmp_path)


TASK = "name: words\ngrader: numeric\nsplits:\n  train: {{file: train.jsonl{pin}}}\n  test: {{file: test.jsonl{pin}}}\n"


@pytest.mark.parametrize("pin", ["", f", digest: 'sha256:{'0' * 64}'"])
def test_missing_data_of_a_task_of_ones_own(refuse: Any, bench: Bench, tmp_path: Path, pin: str) -> None:
    """Where a digest is pinned, planning needs no data: only the run misses them."""
    task = tmp_path / "words.yaml"
    task.write_text(TASK.format(pin=pin))
    trained_on = ("std_norm", "--set", f"task.train={task}")
    missing = "no problems for words-t"
    err = refuse(2, missing, "run", *trained_on).err
    assert f"looked for the file {tmp_path / 't'}" in err
    assert "put t" in err
    refuse(2, missing, "run", "std_norm", "--set", f"eval.tasks=[{task}]")
    if pin:
        assert bench("plan", *trained_on).code == 0
    else:
        refuse(2, missing, "plan", *trained_on)


GOOD_PAIR = {"prompt": "1+1=", "chosen": "2#2", "rejected": "3#3"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "says"),
    [
        (GOOD_PAIR | {"rejected": "2#2"}, "pairs.jsonl, line 3: chosen and rejected are the same"),
        (
            {"prompt": "1+1=", "chosen": "2#2"},
            "pairs.jsonl, line 3: no field 'rejected'; the row has 'prompt', 'chosen'",
        ),
        (GOOD_PAIR | {"chosen": 2}, "pairs.jsonl, line 3: "),
        (GOOD_PAIR | {"prompt": "1+" * 100 + "1="}, "pairs.jsonl, line 3: its prompt has 202 tokens, but the model's"),
    ],
)
def test_a_faulty_pair_is_named_by_its_file_and_line(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], says: str
) -> None:
    without_workers(monkeypatch)
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in (GOOD_PAIR, GOOD_PAIR, row)))
    result = bench("run", write_sweep_file(tmp_path, **offline(file)))
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert "Traceback" not in result.err
    assert not [path for path in tmp_path.rglob("status.json") if "pending" not in path.read_text()]


def offline(file: Path) -> dict[str, Any]:
    pairs = {"type": "dataset", "data": str(file), "pairs_per_step": 2, "max_tokens": 60}
    return {"base": {"algorithm": "dpo", "pairs": pairs}, "arms": {"a": {}, "b": {"objective.beta": 1.0}}} | {
        "ablate": ["objective.beta"],
        "seeds": 1,
    }


ON_PAIRS = [
    (("--set", "pairs.data=none.jsonl"), "no file none.jsonl with pairs"),
    (("--set", "pairs.data=hub:someone/pairs"), "the pairs hub:someone/pairs: what is on the hub can change"),
    (("--set", "pairs.split=test"), "are a file, which has no split 'test'"),
    (("--set", "pairs.pairing=all"), "--set: pairs.pairing is not a key here"),
    (("--set", "objective.rule.clip_high=0.3"), "objective.rule.clip_high belongs to policy-gradient objectives"),
    (("--set", "objective.reference=round_start"), "there are no rounds"),
    (("--set", "algorithm=dpoo"), "unknown algorithm 'dpoo'; did you mean dpo"),
]


@pytest.mark.parametrize(("words", "says"), ON_PAIRS)
def test_a_question_about_pairs_that_makes_no_sense(
    refuse: Any, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(GOOD_PAIR)}\n" for _ in range(3)))
    sweep = write_sweep_file(tmp_path, **offline(file))
    refuse(2, says, "run", sweep, *words)


def test_a_preference_algorithm_wants_pairs_or_a_grader(refuse: Any, tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text("name: chat\ngrader: null\nsplits: {train: {file: chat.jsonl}}\n")
    settings = ("--set", "task.train=chat.yaml", "--set", "eval.tasks=[arithmetic]", "--arms", "dpo_online")
    refuse(2, "task.train=chat.yaml has no grader", "run", "dpo_vs_grpo", *settings)


@pytest.mark.parametrize("home", ["file", "file/below"])
def test_runs_that_cannot_be_written(refuse: Any, tmp_path: Path, home: str) -> None:
    (tmp_path / "file").write_text("in the way")
    err = refuse(2, "cannot be written", "run", "std_norm", "--home", home).err
    assert "choose another place with --home DIR or BENCH_HOME" in err


def test_looking_at_a_home_that_is_no_folder(bench: Bench, refuse: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert bench("plan", "aa", "--home", "file").code == 0
    assert bench("ls", "runs", "--home", "file", "--json").document == []
    refuse(2, "no records in file", "status", "aa", "--home", "file")


@pytest.mark.parametrize("verb", ["status", "report", "sync"])
def test_a_sweep_that_was_never_run(refuse: Any, verb: str) -> None:
    err = refuse(2, "sweep 'std_norm': no records in runs.", verb, "std_norm").err
    assert "Start it with `bench run`." in err
    refuse(2, "no records in runs.", verb, "std_norm", "--json")


def test_cp_never_overwrites(refuse: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    (tmp_path / "std_norm.yaml").write_text("mine")
    refuse(2, "mine.yaml exists already and is not overwritten. Give another name.", "cp", "std_norm", "mine.yaml")
    refuse(2, "std_norm.yaml exists already", "cp", "std_norm")
    refuse(2, "none/mine.yaml: cannot be written (No such file or directory)", "cp", "std_norm", "none/mine.yaml")
    refuse(2, "unknown sweep, probe or profile 'std_nrom'; did you mean std_norm", "cp", "std_nrom")


def test_show_names_the_nearest(refuse: Any) -> None:
    refuse(2, "unknown name 'drgrpo'; did you mean dr_grpo", "show", "drgrpo")
    refuse(2, "unknown name 'zzz'. `bench ls WHAT` lists all.", "show", "zzz")


def test_coldstart_leaves_a_folder_alone_and_reads_its_recipe_first(refuse: Any, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    refuse(2, "--out old exists already and is not overwritten", "coldstart", "--out", "old")
    refuse(2, "none.yaml: cannot be read", "coldstart", "--out", "new", "none.yaml")
    (tmp_path / "recipe.yaml").write_text(json.dumps({"source": "scratch:tiny", "cold_start": {"stesp": 3}}))
    refuse(2, "recipe.yaml: cold_start.data has no default", "coldstart", "--out", "new", "recipe.yaml")
