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

from evals.yaml_file import LARGEST_INTEGER, MOST_BYTES
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


@pytest.mark.parametrize(
    ("instead", "by", "says"),
    [
        (BASE, "base: " + "[" * 3000 + "]" * 3000, "is nested more than 32 deep in line 6. Write it flatter."),
        (BASE, "base: " + "{a: " * 3000 + "1" + "}" * 3000, "is nested more than 32 deep in line 6."),
        (BASE, "base: &x {algorithm: grpo, y: *x}", "or in itself. Write it out."),
        ("seeds: 2", "seeds: &x [*x]", "or in itself. Write it out."),
        (BASE, laughs("[lol, lol]", f"[{', '.join('*' * 9)}]"), "20,000 keys and values once aliases are filled in"),
        (
            BASE,
            laughs("{x: 1}", f"{{{', '.join(f'k{n}: *' for n in range(9))}}}"),
            "20,000 keys and values once aliases are filled in",
        ),
        ("seeds: 2", f"seeds: [{'1, ' * 30_000}]", "holds more than 20,000 keys and values, up to line 8. Split it."),
        ("question: Does it end?", "question: " + "Q" * MOST_BYTES, "is larger than 1,000,000 bytes. Split it"),
        ("question: Does it end?", 'question: "\\ud800"', "with a character that no file can hold. Take it out."),
        ("profile: tiny", 'profile: "a\\0b"', "with a character that no file can hold. Take it out."),
        (BASE, "base: {algorithm: !!timestamp soon}", "has the tag 'tag:yaml.org,2002:timestamp' in line 6"),
        ("name: absurd", f"name: {'n' * 300}", "string should have at most 255 characters"),
        ("seeds: 2", "seeds: []\ncompare: null", "seeds is []: give a count of at least 1"),
        ("seeds: 2", "seeds: 1000000000", "seeds: are 1,000,000,000, and a sweep has at most 10,000 cells"),
        ("seeds: 2", f"seeds: {NINES}", f"in line 8, but the largest is {LARGEST_INTEGER:,}. Give a smaller one"),
        ("seeds: 2", "seeds: 6000", "has 12,000 cells, and a sweep has at most 10,000: ask for fewer seeds or arms"),
        (
            ARMS,
            f"arms: {{{', '.join(f'a{n}: {{}}' for n in range(201))}}}",
            "arms: gives 201 arms, and a sweep has at most 200: ask about fewer knobs or values at once",
        ),
        (
            ARMS,
            "grid: {" + ", ".join(f"train.{k}: {[*range(1, 99)]}" for k in ("steps", "epochs", "warmup_steps")) + "}",
            "grid: gives 941,192 arms, and a sweep has at most 200",
        ),
    ],
)
def test_an_absurd_file(bench: Bench, tmp_path: Path, instead: str, by: str, says: str) -> None:
    assert instead in SWEEP
    (tmp_path / "absurd.yaml").write_text(SWEEP.replace(instead, by))
    assert says in refused(bench, "plan", "absurd.yaml")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (f"train.steps={NINES}", f"but the largest is {LARGEST_INTEGER:,}"),
        (f"train.learning_rate={NINES}.5", "train.learning_rate is inf: input should be a finite number"),
        ("train.steps=" + "[" * 1000, "the value is nested more than 32 deep"),
        ("train.steps=1e23", "train.steps is 1e+23: input should be a valid integer"),
        ("train.steps=100000000000", "train.steps is 100000000000: input should be less than or equal to 10,000,000"),
        ("eval.samples=100000000", "eval.samples is 100000000: input should be less than or equal to 100,000"),
        ("rollout.samples_per_prompt=100000", "a step would draw 3,200,000 completions"),
        ("train.learning_rate=1e38", "train.learning_rate is 1e+38: a number here is 0, or its size lies between"),
        ("rollout.temperature=1e-300", "rollout.temperature is 1e-300: a number here is 0, or its size lies"),
        ("reward.parts.correct=1e300", "reward.parts.correct is 1e+300: a number here is 0, or its size lies"),
        ("model.source=hf:../../etc", "'hf:../../etc', but the hub has models <name> and <owner>/<name>"),
        ("model.source=hf:a/b/c", "but the hub has models <name> and <owner>/<name>"),
        ("model.source=hf:a/b@../../c", "but the hub has models <name> and <owner>/<name>"),
        ("train.device=cuda:99999999999999999999", "train.device is 'cuda:99999999999999999999': string should match"),
        ("k" * 5000 + "=1", "unknown key kkk"),
    ],
)
def test_an_absurd_setting(bench: Bench, setting: str, says: str) -> None:
    assert says in refused(bench, "plan", "std_norm", "--set", setting)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "std_norm", "--seeds", NINES), "--seeds is '999"),
        (("plan", "std_norm", "--seeds", "1000000000"), "--seeds is 1,000,000,000, but a sweep has at most 10,000"),
        (("run", "std_norm", "--until", "verdict", "--most-seeds", "1000000000"), "less than or equal to 10000."),
        (("plan", "x" * 5000), "File name too long"),
        (("show", "x" * 5000), "(4,882 characters left out)"),
    ],
)
def test_absurd_words(bench: Bench, words: tuple[str, ...], says: str) -> None:
    assert says in refused(bench, *words)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("learning_rate: 1e38", "learning_rate is 1e+38: input should be less than or equal to 1e+30"),
        ("steps: 100000000000", "steps is 100000000000: input should be less than or equal to 10,000,000"),
    ],
)
def test_an_absurd_recipe(bench: Bench, tmp_path: Path, setting: str, says: str) -> None:
    recipe = f"source: builtin:tiny\ncold_start: {{type: sft, data: 'demonstrations:arithmetic', {setting}}}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    assert says in refused(bench, "coldstart", "recipe.yaml", "--out", "made")
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


@pytest.mark.parametrize(
    ("instead", "by", "says"),
    [
        ("float: [0.1, 1]", "float: [0, 1e300], step: 1e-300", "[0, 1e+300], but no knob goes beyond 1e+30"),
        ("float: [0.1, 1]", "float: [0, 1], step: 1e-300", "more than 1,000,000 values between 0 and 1: raise it"),
        ("float: [0.1, 1]", f"categorical: {[*range(5000)]}", "should have at most 1000 items"),
        ("trials: 5", "trials: 100000000000", "search.budget.trials is 100000000000: input should be less than"),
    ],
)
def test_an_absurd_search(bench: Bench, tmp_path: Path, instead: str, by: str, says: str) -> None:
    (tmp_path / "absurd.yaml").write_text(SEARCH.replace(instead, by))
    assert says in refused(bench, "show", "absurd.yaml")


@pytest.mark.parametrize(
    ("setting", "kind"), [("task.train", "task"), ("task.template", "template"), ("eval.tasks", "task")]
)
def test_files_of_ones_own_have_the_same_limits(bench: Bench, tmp_path: Path, setting: str, kind: str) -> None:
    (tmp_path / "own.yaml").write_text("name: " + "[" * 3000)
    value = "[own.yaml]" if setting == "eval.tasks" else "own.yaml"
    assert f"{kind} file" in (said := refused(bench, "plan", "std_norm", "--set", f"{setting}={value}"))
    assert "own.yaml is nested more than 32 deep in line 1" in said


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


@settings(
    max_examples=150,
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
