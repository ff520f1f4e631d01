"""Input of absurd depth, size or value is refused at once: what was given, the rule, the remedy; never a traceback,
never a hang."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evals.yaml_file import MOST_BYTES
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench

PATIENCE_S = 5.0
"""Time of the processor, which others on the machine do not lengthen."""
SWEEP = """
name: absurd
question: Does it end?
profile: tiny
ablate: [objective.scale]
base: {algorithm: grpo}
arms: {a: {}, b: {objective.scale: none}}
seeds: 2
"""
BASE = "base: {algorithm: grpo}"
ARMS = "arms: {a: {}, b: {objective.scale: none}}"
NINES = "9" * 5000


def laughs(item: str, of_level: str) -> str:
    """Ten levels, each nine times the one below: a billion items, written in ten lines."""
    below = [f"a{level}: &a{level} {of_level.replace('*', f'*a{level - 1}')}" for level in range(1, 10)]
    return "base:\n  " + "\n  ".join([f"a0: &a0 {item}", *below])


def refused(bench: Bench, *words: object) -> str:
    """What `bench` says as it refuses, soon and shortly."""
    began_s = time.process_time()
    result = bench(*words)
    assert result.code == 2, result.err
    assert time.process_time() - began_s < PATIENCE_S
    assert result.out == "" and result.err.startswith("error: ") and "Traceback" not in result.err
    assert len(result.err) < 1500
    return result.err


FILES = [
    (BASE, "base: " + "[" * 3000 + "]" * 3000),
    (BASE, "base: " + "{a: " * 3000 + "1" + "}" * 3000),
    (BASE, "base: &x {algorithm: grpo, y: *x}"),
    ("seeds: 2", "seeds: &x [*x]"),
    (BASE, laughs("[lol, lol]", f"[{', '.join('*' * 9)}]")),
    (BASE, laughs("{x: 1}", f"{{{', '.join(f'k{n}: *' for n in range(9))}}}")),
    ("seeds: 2", f"seeds: [{'1, ' * 30_000}]"),
    ("question: Does it end?", "question: " + "Q" * MOST_BYTES),
    ("question: Does it end?", 'question: "\\ud800"'),
    ("profile: tiny", 'profile: "a\\0b"'),
    (BASE, "base: {algorithm: !!timestamp soon}"),
    ("name: absurd", f"name: {'n' * 300}"),
    ("seeds: 2", "seeds: []\ncompare: null"),
    ("seeds: 2", "seeds: 1000000000"),
    ("seeds: 2", f"seeds: {NINES}"),
    ("seeds: 2", "seeds: 6000"),
    (ARMS, f"arms: {{{', '.join(f'a{n}: {{}}' for n in range(201))}}}"),
    (ARMS, "grid: {" + ", ".join(f"train.{k}: {[*range(1, 99)]}" for k in ("steps", "epochs", "warmup_steps")) + "}"),
]


@pytest.mark.slow
def test_an_absurd_file(bench: Bench, tmp_path: Path) -> None:
    told = ""
    for instead, by in FILES:
        assert instead in SWEEP
        (tmp_path / "absurd.yaml").write_text(SWEEP.replace(instead, by))
        told += refused(bench, "plan", "absurd.yaml")
    frozen("cli/limits_of_files", told)


SETTINGS = [
    f"train.steps={NINES}",
    f"train.learning_rate={NINES}.5",
    "train.steps=" + "[" * 1000,
    "train.steps=1e23",
    "train.steps=100000000000",
    "eval.samples=100000000",
    "rollout.samples_per_prompt=100000",
    "train.learning_rate=1e38",
    "rollout.temperature=1e-300",
    "reward.parts.correct=1e300",
    "model.source=hf:../../etc",
    "model.source=hf:a/b/c",
    "model.source=hf:a/b@../../c",
    "train.device=cuda:99999999999999999999",
    "k" * 5000 + "=1",
]


def test_an_absurd_setting(bench: Bench) -> None:
    frozen("cli/limits_of_settings", "".join(refused(bench, "plan", "std_norm", "--set", one) for one in SETTINGS))


WORDS: list[tuple[object, ...]] = [
    ("plan", "std_norm", "--seeds", NINES),
    ("plan", "std_norm", "--seeds", "1000000000"),
    ("run", "std_norm", "--until", "verdict", "--most-seeds", "1000000000"),
    ("show", "x" * 5000),
]


def test_absurd_words_and_an_absurd_recipe(bench: Bench, tmp_path: Path) -> None:
    recipe = "source: builtin:tiny\ncold_start: {type: sft, data: 'demonstrations:arithmetic', "
    (tmp_path / "recipe.yaml").write_text(recipe + "learning_rate: 1e38, steps: 100000000000}\n")
    refused(bench, "plan", "x" * 5000)
    recipe_told = bench("coldstart", "recipe.yaml", "--out", "made")  # not timed: it imports much
    assert (recipe_told.code, recipe_told.out) == (2, "")
    frozen("cli/limits_of_words", "".join([*(refused(bench, *words) for words in WORDS), recipe_told.err]))
    assert not (tmp_path / "made").exists()


SEARCH = """
name: absurd
question: Does it end?
profile: tiny
base: {algorithm: grpo}
search:
  knobs: {train.learning_rate: {float: [0.1, 1]}}
  budget: {trials: 5}
"""


SEARCHES = [
    ("float: [0.1, 1]", "float: [0, 1e300], step: 1e-300"),
    ("float: [0.1, 1]", "float: [0, 1], step: 1e-300"),
    ("float: [0.1, 1]", f"categorical: {[*range(5000)]}"),
    ("trials: 5", "trials: 100000000000"),
]


def test_an_absurd_search(bench: Bench, tmp_path: Path) -> None:
    told = ""
    for instead, by in SEARCHES:
        (tmp_path / "absurd.yaml").write_text(SEARCH.replace(instead, by))
        told += refused(bench, "show", "absurd.yaml")
    frozen("cli/limits_of_searches", told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "kind"), [("task.train", "task"), ("task.template", "template"), ("eval.tasks", "task")]
)
def test_files_of_ones_own_have_the_same_limits(bench: Bench, tmp_path: Path, setting: str, kind: str) -> None:
    (tmp_path / "own.yaml").write_text("name: " + "[" * 3000)
    value = "[own.yaml]" if setting == "eval.tasks" else "own.yaml"
    result = bench("plan", "std_norm", "--set", f"{setting}={value}")
    result.refused("evals.yaml_nested_too_deep")
    assert f"{kind} file" in result.err


KNOBS = [
    *("train.steps", "train.learning_rate", "train.device", "train.updates_per_rollout", "train.lr_schedule"),
    *("rollout.prompts_per_step", "rollout.temperature", "rollout.staged", "rollout.staged.type", "rollout.engine"),
    *("eval.samples", "eval.k", "eval.tasks", "eval.grader", "eval.problems", "eval.template", "budget.tokens"),
    *("model.source", "model.lora", "model.lora.rank", "model.cold_start", "model.cold_start.data", "task.train"),
    *("task.filter", "task.filter.samples", "reward.parts", "reward.parts.correct", "reward.grader", "pairs.data"),
    *("algorithm", "objective", "objective.scale", "objective.rule.type", "objective.rule.clip_low", "objective.kl"),
]
numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 2**31, 2**63, 10**18, 10**400, 1e38, -1e300, 1e-320])
)
texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["hf:..", "path:", "path:/", "gguf:.", "hub:x@y", "grpo", "dpo", "cuda:9", "a.yaml", "/", "\0", "*"]
    ),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=12,
)
knob_settings = st.one_of(values, st.dictionaries(st.sampled_from(KNOBS), values, max_size=3))
SECTIONS: dict[str, Any] = {
    "name": values,
    "question": values,
    "profile": st.one_of(values, st.just("tiny")),
    "plugins": values,
    "ablate": st.one_of(values, st.lists(st.sampled_from(KNOBS), max_size=3)),
    "co_changes": values,
    "base": st.one_of(
        knob_settings,
        st.dictionaries(st.sampled_from(KNOBS), values, max_size=2).map(lambda knobs: {"algorithm": "grpo"} | knobs),
    ),
    "arms": st.one_of(values, st.dictionaries(texts, knob_settings, max_size=3)),
    "grid": st.one_of(values, st.dictionaries(st.sampled_from(KNOBS), st.lists(values, max_size=3), max_size=2)),
    "checkpoint": values,
    "search": st.one_of(values, st.fixed_dictionaries({"knobs": values}, optional={"budget": values})),
    "tune": st.one_of(values, st.fixed_dictionaries({"per_arm": values}, optional={"trials": values})),
    "seeds": st.one_of(values, st.lists(numbers, max_size=3)),
    "compare": values,
    "screening": values,
}


@pytest.mark.slow
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changed=st.fixed_dictionaries({}, optional=SECTIONS))
def test_no_sweep_file_ends_in_a_traceback(bench: Bench, tmp_path: Path, changed: dict[str, Any]) -> None:
    """A valid file, some of whose sections are replaced by anything that YAML can say."""
    document = yaml.safe_load(SWEEP) | changed
    (tmp_path / "absurd.yaml").write_text(yaml.safe_dump(document, allow_unicode=False), encoding="utf-8")
    began_s = time.process_time()
    result = bench("plan", "absurd.yaml")
    assert result.code in (0, 2, 3), result.err
    assert time.process_time() - began_s < PATIENCE_S
    assert (result.err == "") == (result.code == 0)
