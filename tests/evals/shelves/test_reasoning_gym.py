"""Tasks of the package reasoning-gym. All but the first test need it: pip install -e '.[reasoning-gym]'."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec

import pytest

from evals import get_task, grade, task_names
from evals.errors import EvalError
from evals.evaluate import missing_draws
from evals.prompts import get_template
from evals.shelves.reasoning_gym.tasks import PROCESS, TEST_PROBLEMS, TRAIN_PROBLEMS, GymScorer, load_gym_task
from evals.tasks.base import Problem
from harness.errors import RefusedError
from harness.plan import make_plan
from tests.evals.scripted import graded_row
from tests.refusals import refuses

needs_package = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs the extra reasoning-gym")
SUMS = "reasoning_gym:chain_sum"
GYM = "evals.shelves.reasoning_gym"


def test_without_the_package_it_is_said_how_to_install_it(monkeypatch):
    load_gym_task.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with refuses(
        EvalError, "evals.shelves.reasoning_gym.package_not_installed", install="pip install -e '.[reasoning-gym]'"
    ):
        get_task(SUMS)
    with refuses(RefusedError, "evals.shelves.reasoning_gym.package_not_installed"):
        make_plan("std_norm", "tiny", [f"task.train={SUMS}"])
    assert "arithmetic" in task_names(), "other tasks do not mind"


@pytest.mark.slow
def test_the_package_is_imported_only_for_its_own_tasks():
    code = "from evals import get_task, task_names\nimport sys\nfor name in task_names(): get_task(name)\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print('reasoning_gym' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


@needs_package
def test_a_task_by_name():
    task = get_task(SUMS)
    assert (task.name, task.template, task.grader, task.extract) == (SUMS, "answer_tag", "own", "answer_tag")
    train, test = task.split("train").load(), task.split("test").load()
    assert (len(train), len(test)) == (TRAIN_PROBLEMS, TEST_PROBLEMS)
    problems = [problem.problem for problem in (*train, *test)]
    assert len(set(problems)) == len(problems), "no problem twice, and none in both splits"
    assert len({problem.id for problem in (*train, *test)}) == len(problems)
    assert task.split("train").fingerprint != task.split("test").fingerprint
    version = metadata.version("reasoning-gym")
    assert task.split("test").fingerprint.startswith(f"reasoning-gym=={version}:v1:chain_sum:")


@needs_package
def test_options_reach_the_package():
    task = get_task(f"{SUMS}?max_terms=2&max_digits=1&allow_negation=true&size=40")
    train = task.split("train").load()
    assert len(train) == 40
    assert all(problem.problem.split(": ")[1].count(" ") == 3 for problem in train), "two terms, a sign, ="
    assert any("-" in problem.problem.split(": ")[1].split()[0] for problem in train)
    other = get_task(f"{SUMS}?max_terms=3&max_digits=1&allow_negation=true&size=40")
    assert other.split("test").fingerprint != task.split("test").fingerprint


@needs_package
@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        (f"{SUMS}?max_terms=6&min_terms=2", SUMS),  # the defaults
        (f"{SUMS}?min_terms=3&max_terms=4", f"{SUMS}?max_terms=4&min_terms=3"),
        (f"{SUMS}?size={TRAIN_PROBLEMS}", SUMS),
        (f"{SUMS}?size=9", f"{SUMS}?size=9"),
        ('reasoning_gym:basic_arithmetic?operators=[ "+", "-" ]', 'reasoning_gym:basic_arithmetic?operators=["+","-"]'),
        ("reasoning_gym:word_sorting?transformation=uppercase", "reasoning_gym:word_sorting?transformation=uppercase"),
        ("reasoning_gym:time_intervals?min_date=2001-01-31", "reasoning_gym:time_intervals?min_date=2001-01-31"),
        ("reasoning_gym:binary_matrix?p_zero=0.5", "reasoning_gym:binary_matrix?p_zero=0.5"),
    ],
)
def test_one_name_for_one_set_of_options(given, canonical):
    assert get_task(given).name == canonical
    assert get_task(canonical).split("train").fingerprint == get_task(given).split("train").fingerprint


@needs_package
@pytest.mark.parametrize(
    ("name", "code", "fields"),
    [
        (f"{SUMS[:-1]}n", "bench.unknown_name", {"name": "'chain_sun'", "noun": "reasoning-gym task"}),
        (f"{SUMS}?max_term=3", f"{GYM}.unknown_option", {"option": "max_term"}),
        (f"{SUMS}?max_terms=many", f"{GYM}.option_value_not_valid", {"value": "many"}),
        (f"{SUMS}?max_terms=2.5", f"{GYM}.option_value_not_valid", {"value": "2.5"}),
        (f"{SUMS}?max_terms=true", f"{GYM}.option_value_not_valid", {"value": "true"}),
        (f"{SUMS}?max_terms", "evals.option_without_value", {"option": "max_terms"}),
        (f"{SUMS}?max_terms=3&max_terms=4", "evals.option_given_twice", {"option": "max_terms"}),
        (f"{SUMS}?max_terms=1", f"{GYM}.options_refused", {"data_set": "chain_sum"}),
        (f"{SUMS}?seed=3", f"{GYM}.seed_as_option", {}),
        (f"{SUMS}?size=0", f"{GYM}.size_too_small", {"size": 0}),
        (
            "reasoning_gym:word_sorting?transformation=uper",
            f"{GYM}.option_value_not_valid",
            {"nearest": "; did you mean uppercase?"},
        ),
        ("reasoning_gym:basic_arithmetic?operators=[+]", f"{GYM}.option_value_not_valid", {"value": "[+]"}),
        ("reasoning_gym", "bench.unknown_name", {"noun": "task"}),
    ],
)
def test_faulty_names_and_options(name, code, fields):
    with refuses(RefusedError, code, **fields):
        get_task(name)


@needs_package
def test_a_task_with_too_few_problems_says_so():
    task = get_task("reasoning_gym:coin_flip")
    with refuses(EvalError, f"{GYM}.too_few_different_problems", n_needed=2304, n_test=TEST_PROBLEMS):
        task.split("train").load()


@needs_package
def test_the_problems_do_not_depend_on_the_process(monkeypatch):
    """isomorphic_strings goes through sets of strings, list_functions draws from Python's global generator."""
    for data_set in ("isomorphic_strings", "list_functions"):
        made = []
        for hash_seed in ("1", "2"):
            load_gym_task.cache_clear()
            monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
            splits = get_task(f"reasoning_gym:{data_set}?size=8").splits
            made.append([*splits["test"].load(), *splits["train"].load()])
        assert made[0] == made[1]


def reason(problem: Problem, text: str) -> str:
    return grade(text, problem.answer, "own", "answer_tag", problem.own_comparison).reason


@needs_package
def test_an_answer_is_right_if_it_has_the_full_score():
    problem = get_task(f"{SUMS}?size=4").split("test").load()[0]
    assert reason(problem, f"so <answer>{problem.answer}</answer>") == "match"
    assert reason(problem, f"so <answer>{problem.answer}.0</answer>") == "match"
    # The package gives a part of the score for a text that holds the answer.
    assert reason(problem, f"so <answer>about {problem.answer}</answer>") == "mismatch"
    assert reason(problem, "so <answer>nothing</answer>") == "mismatch"
    assert reason(problem, f"so {problem.answer}") == "unparsed", "no tag"
    assert reason(problem, f"<answer>{'9' * 30_000}</answer>") == "unparsed", "longer than any answer"


@needs_package
def test_more_answers_than_one_are_right_and_boards_keep_their_lines():
    countdown = get_task("reasoning_gym:countdown?size=1").split("train").load()[0]
    assert reason(countdown, f"<answer>({countdown.answer})</answer>") == "match"
    board = get_task("reasoning_gym:mini_sudoku?size=1").split("train").load()[0]
    assert "\n" in board.answer
    assert reason(board, f"\\boxed{{{board.answer}}}") == "match"
    assert reason(board, f"<answer>{' '.join(board.answer.split())}</answer>") == "mismatch"
    assert get_task("reasoning_gym:propositional_logic?size=1").split("train").load()[0].answer, "there is no reference"


@needs_package
def test_only_the_own_comparison_speaks_in_a_record():
    task = get_task(f"{SUMS}?size=4")
    (request,) = missing_draws(task.split("test").load()[:1], get_template(task.template), 1)
    row = graded_row(task, request, f"<answer>{request.require_problem().answer}</answer>", 3, False)
    assert (row["correct"], row["verdicts"]) == (True, '{"own": true}')
    assert "</answer>" in str(request.prompt)


@needs_package
def test_a_scorer_that_fails_is_a_crash_and_the_worker_goes_on():
    scorer = get_task(f"{SUMS}?size=4").split("test").load()[0].own_comparison
    assert isinstance(scorer, GymScorer)
    assert scorer(scorer.entry["answer"]) == "match"
    worker = PROCESS._running().pid
    assert replace(scorer, entry={})("1") == "crash"
    assert PROCESS._running().pid == worker


@needs_package
def test_a_plan_with_such_a_task():
    plan = make_plan("std_norm", "tiny", ["task.train=reasoning_gym:gsm_symbolic"])
    spec = plan.first_spec
    assert (spec.reward.grader, spec.eval.grader, spec.task.template) == ("own", "own", "answer_tag")
    assert plan.metric == "eval.final.reasoning_gym:gsm_symbolic.pass@1"
    with refuses(RefusedError, "clash", path="") as refused:
        make_plan("std_norm", "tiny", [f"task.train={SUMS}", f"eval.tasks=[{SUMS}, gsm8k]"])
    assert "eval.grader=own" in str(refused.value) and "gsm8k" in str(refused.value)
    with refuses(RefusedError, "clash", path="") as refused:
        make_plan("std_norm", "tiny", ["reward.grader=own"])
    assert "reward.grader=own" in str(refused.value)
    make_plan("std_norm", "tiny", [f"task.train={SUMS}", f"eval.tasks=[{SUMS}, gsm8k]", "eval.grader=numeric"])
