"""Tasksets of the package verifiers. Tests that are marked slow need it: pip install -e '.[verifiers]'."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.evaluate import regrade
from evals.shelves.verifiers.tasks import Episode, load_verifiers_task
from evals.tasks import get_task
from evals.tasks.base import Environment, Problem
from evals.tasks.environment import Turn
from harness import plugins
from harness.config.hashing import semantic_hash, user_code
from harness.errors import RefusedError
from harness.plan import make_plan
from tests.evals.scripted import draw_of, graded_row
from tests.harness.run.small import small_spec
from tests.harness.shelves.judges.judge_server import Fault, serving

TASKSETS = Path(__file__).with_name("tasksets")
GAME = "verifiers:higher-lower"
SUMS = "verifiers:digit_sums"


def needs_package(test: Callable[..., None]) -> Callable[..., None]:
    absent = pytest.mark.skipif(find_spec("verifiers") is None, reason="needs the extra verifiers")
    marked: Callable[..., None] = pytest.mark.slow(absent(test))
    return marked


@pytest.fixture(autouse=True)
def tasksets() -> Iterator[None]:
    plugins.use([], [TASKSETS])
    yield
    plugins.use([], [])


def environment(name: str = GAME) -> Environment:
    found = get_task(name).environment
    assert found is not None
    return found


def game(number: int) -> Problem:
    """The game whose number this is."""
    games = [*get_task(GAME).split("test").load(), *get_task(GAME).split("train").load()]
    return next(one for one in games if f'"number": {number}' in data_of(one))


def data_of(problem: Problem) -> str:
    assert isinstance(problem.own_comparison, Episode)
    return problem.own_comparison.data


@pytest.mark.parametrize(
    ("installed", "message", "remedy"),
    [
        (None, "need the package verifiers", "Install it"),
        ("0.1.14", "need verifiers 0.4, and 0.1.14 is installed", "Install 0.4"),
    ],
)
def test_without_the_right_package_it_is_said_how_to_install_it(
    installed: str | None, message: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("evals.shelves.verifiers.tasks.metadata.version", version)
    with pytest.raises(EvalError, match=rf"{message}.* {remedy}: pip install -e '\.\[verifiers\]'"):
        get_task(GAME)
    with pytest.raises(RefusedError, match=rf"task\.train.*{message}"):
        make_plan("std_norm", "tiny", [f"task.train={GAME}"])


@needs_package
def test_a_taskset_by_name() -> None:
    task = get_task(SUMS)
    assert (task.name, task.template, task.grader, task.extract) == (SUMS, "chat", "own", "whole")
    assert environment(SUMS).max_turns == 1
    train, test = task.split("train").load(), task.split("test").load()
    assert (len(test), len(train)) == (6**3 // 4, 6**3 - 6**3 // 4)
    assert [one.problem for one in test[:2]] == ["#\n\n1+1+1=", "#\n\n1+1+2="], "the system message stands before it"
    assert (train[0].id, test[1].answer) == (f"digit_sums-{len(test):06d}", "4")
    assert len({one.id for one in (*train, *test)}) == 6**3


@needs_package
def test_options_are_those_of_the_package_and_two_of_our_own() -> None:
    assert environment().max_turns == 8
    task = get_task(f"{GAME}?size=5&taskset.last=3000&agent.max_turns=3&taskset.first=2")
    assert task.name == f"{GAME}?agent.max_turns=3&size=5&taskset.first=2&taskset.last=3000"
    assert task.environment is not None
    assert task.environment.max_turns == 3
    train, test = task.split("train").load(), task.split("test").load()
    assert (len(test), len(train)) == (256, 5), "an endless stream, without repetitions"
    assert {one.problem for one in (*train, *test)} == {"2,3000="}
    assert len({data_of(one) for one in (*train, *test)}) == 261
    prints = {get_task(name).split("test").fingerprint for name in (GAME, f"{GAME}?right_from=1.2", task.name)}
    assert len(prints) == 3
    assert all(one.startswith(f"verifiers=={metadata.version('verifiers')}:v1:higher-lower:test:") for one in prints)


@needs_package
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "verifiers:higher_lowr",
            "there is no module higher_lowr in .*Put its file next to the sweep file, or install",
        ),
        ("verifiers:judge_server", "there is no module judge_server"),
        ("verifiers:hypothesis", "cannot be loaded: TypeError: taskset module 'hypothesis' exports no Taskset"),
        (f"{GAME}?last=5", "verifiers refuses these options: last: Extra inputs are not permitted"),
        (f"{GAME}?taskset.last=x", "taskset.last: Input should be a valid integer"),
        (f"{GAME}?agent.model=gpt", "of agent.* only agent.max_turns is an option, not agent.model"),
        (f"{GAME}?taskset.last", "option 'taskset.last' has no value"),
        (f"{GAME}?size=1&size=2", "option size is given twice"),
        (f"{GAME}?size=0", "size is 0: give the maximum number of training problems"),
        (f"{GAME}?right_from=all", "right_from is 'all': give the lowest reward"),
        (f"{GAME}?taskset.id=other", "the taskset is named before the `\\?`"),
        (f'{GAME}?taskset.task.rewards={{"found":{{"fn":"os.getcwd"}}}}', "no hash covers its code"),
        (f'{GAME}?taskset.task.judges=[{{"id":"reference","model":"m"}}]', "another model judges its tasks"),
        (f"{GAME}?id=user-sim", "has 2 agents .*assistant, user.*, and bench trains one that plays alone"),
        (f"{GAME}?id=best-of-n", "plays more than once in an episode"),
    ],
)
def test_a_wrong_name_or_option_is_one_clear_error(name: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        get_task(name).split("train").load()


@needs_package
@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 9), st.lists(st.sampled_from(["#1", "#4", "#9", "#7", "7", "", "#99999"]), min_size=1, max_size=5)
)
def test_replies_and_rewards_are_the_environments_own(number: int, said: list[str]) -> None:
    """Against the rules of the game, written down here: the rewards of all turns so far add up to the episode's."""
    problem, known, earned = game(number), None, 0.0
    for count, words in enumerate(said, start=1):
        guess = int(words[1:]) if words.startswith("#") and len(words) < 5 else None
        known = known if guess is None else guess
        reply = environment().answer(problem, said[:count])
        earned += reply.reward
        nearness = 0.0 if known is None else max(0.0, 1 - abs(known - number) / 8)
        assert earned == pytest.approx(0.25 * nearness + (guess == number))
        assert reply.done == (guess == number)
        if reply.done:
            break
        assert reply.text == ("wait" if guess is None else "+" if guess < number else "w")


@needs_package
def test_the_verdict_is_on_all_turns() -> None:
    task, problem = get_task(GAME), game(6)
    turns = [Turn(2, 3, "+", 0.2), Turn(4, 6, reward=1.05)]
    row = graded_row(task, draw_of(problem, 0), "#4#6", 6, False, turns=turns)
    assert (row["correct"], row["reason"], row["extracted"]) == (True, "match", '["#4", "#6"]')
    assert regrade(task, [problem], [row]) == [row]
    other = get_task(f"{GAME}?right_from=1.3")
    assert not regrade(
        other, [*other.split("test").load(), *other.split("train").load()], [{**row, "task": other.name}]
    )[0]["correct"], "the most that the game gives is 1.25"
    unfinished = graded_row(task, draw_of(problem, 0), "#4", 3, False, turns=turns[:1])
    assert (unfinished["correct"], unfinished["reason"]) == (False, "mismatch")


async def _real_episode(taskset: str, said: Sequence[str], address: str) -> tuple[float, bool]:
    """verifiers' own `Env.run`, with a model at an address; its reward, and whether it ended by itself."""
    import verifiers.v1 as vf

    agent = {"harness": {"id": "in_process_chat"}, "runtime": {"type": "subprocess"}, "max_turns": len(said)}
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": taskset}, "agent": agent}))
    context = vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=address, api_key_var="NO_KEY"))
    async with env.serving():
        episode = await env.run_episode(next(iter(env.taskset)), context)
    [trace] = episode.traces
    assert episode.ok, [*episode.errors, *trace.errors]
    return trace.reward, trace.stop_condition != "max_turns"


@needs_package
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (SUMS, ["#3"]),
        (SUMS, ["#4"]),
        (GAME, ["#4", "9", "#6"]),
        (GAME, ["#4", "#9"]),
        (GAME, ["#6"]),
    ],
)
def test_an_episode_is_that_of_verifiers_with_a_model_at_an_address(
    name: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's words come from a server; what it was asked, and what the episode earned, is what we play."""
    monkeypatch.syspath_prepend(str(TASKSETS))
    problem = get_task(name).split("test").load()[0]
    words = iter(said)
    with serving(lambda question: next(words)) as server:
        answer = server.response

        def as_openai(request: dict[str, Any], headers: dict[str, str]) -> Fault:
            status, body, _ = answer(request, headers)
            reply = json.loads(body) | {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
            reply["choices"][0] |= {"index": 0, "finish_reason": "stop"}
            reply["usage"]["total_tokens"] = 13
            return status, json.dumps(reply).encode(), {"Content-Type": "application/json"}

        monkeypatch.setattr(server, "response", as_openai)
        earned, ended = asyncio.run(_real_episode(name.removeprefix("verifiers:"), said, server.address))
    replies = [environment(name).answer(problem, said[: count + 1]) for count in range(len(said))]
    first = "\n\n".join(message["content"] for message in server.requests[0]["messages"])
    assert [first, *server.questions[1:]] == [problem.problem, *(reply.text for reply in replies[:-1])]
    assert sum(reply.reward for reply in replies) == pytest.approx(earned)
    assert replies[-1].done == ended


TASKSET = """
import itertools, os, random, socket, subprocess, time
import verifiers.v1 as vf
__all__ = ["MyEnv", "MyTaskset"]
PLAYED = []
def drifting():
    PLAYED.append(1)
    return str(len(PLAYED) > 12)
class MyTask(vf.Task):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return {reward}
    {task}
class MyConfig(vf.TasksetConfig):
    {config}
class MyEnv(vf.SingleAgentEnv):
    {env}
class MyTaskset(vf.Taskset[MyTask, MyConfig]):
    def load(self):
        return [MyTask(vf.TaskData(prompt=f"{{number}}" {data}), self.config.task) for number in range(4)]
    {taskset}
"""
TURNS = """async def run(self, task, agents):
        async with agents.agent.interaction(task) as one:
            segment = await one.turn()
            while not segment.terminated:
                segment = await one.turn({asked})
"""


def written(folder: Path, **parts: str) -> str:
    """The name of a task with these parts in place of nothing. Modules of different tests have different names: the
    process is started anew only where one has changed."""
    blanks = dict.fromkeys(("task", "config", "env", "taskset"), "pass") | {"reward": "1.0", "data": ""}
    name = f"mine_{folder.name.lower()}"
    (folder / f"{name}.py").write_text(TASKSET.format(**{**blanks, **parts}), encoding="utf-8")
    plugins.use([], [folder])
    return f"verifiers:{name}"


REFUSED = [
    ({"env": "async def start(self): pass"}, "starts servers of its own"),
    ({"task": "async def setup(self, trace, runtime): pass"}, r"need a sandbox \(setup\)"),
    ({"task": "NEEDS_CONTAINER = True"}, "need a container"),
    ({"data": ', image="python"'}, "need a container"),
    (
        {"task": "@vf.reward\n    async def ran(self, runtime) -> float: return 1.0"},
        "`ran` is computed in a sandbox",
    ),
    (
        {"taskset": "@classmethod\n    def toolsets(cls, config): return [vf.Toolset(vf.SharedToolsetConfig())]"},
        "it has tools",
    ),
    ({"config": 'judge: vf.JudgeConfig = vf.JudgeConfig(model="m")'}, r"another model judges.*\(taskset.judge\)"),
    ({"reward": "float(socket.create_connection(('127.0.0.1', 9)) is None)"}, "uses the network"),
    ({"reward": "float(subprocess.run(['true']).returncode)"}, "starts a program"),
    ({"reward": "float(time.time_ns() % 10**9)"}, "not do the same when the same is said: two episodes differed"),
    ({"env": TURNS.format(asked="str(os.urandom(8))")}, "not do the same when the same is said: two episodes differed"),
    ({"env": TURNS.format(asked='[{"role": "assistant", "content": "x"}]')}, "a message of the role assistant"),
    ({"reward": "float('nan')"}, "gives the reward nan"),
    ({"reward": "1 / 0"}, "a trial episode.* fails: ZeroDivisionError"),
    ({"env": "async def run(self, task, agents): pass"}, "asks its agent nothing"),
]


@needs_package
@pytest.mark.parametrize(("parts", "message"), REFUSED, ids=lambda one: one if isinstance(one, str) else "")
def test_an_environment_that_bench_cannot_play_is_refused_before_training(
    parts: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=f"verifiers:mine_.*: bench cannot play this environment: .*{message}"):
        get_task(written(tmp_path, **parts)).split("train").load()


@needs_package
def test_an_environment_that_changes_later_on_is_refused_then(tmp_path: Path) -> None:
    """Each turn plays what was said before again, so a change is seen."""
    name = written(tmp_path, env=TURNS.format(asked="drifting()"))
    problem, *_ = get_task(name).split("train").load()
    with pytest.raises(EvalError, match="not do the same when the same is said: 'False' was asked first, then 'True'"):
        for count in range(1, 8):
            environment(name).answer(problem, ["x"] * count)


@needs_package
def test_random_numbers_of_an_environment_are_the_same_every_time(tmp_path: Path) -> None:
    name = written(tmp_path, env=TURNS.format(asked="str(random.random())"), reward="random.random()")
    problems = get_task(name).split("train").load()
    first = [environment(name).answer(problem, ["x"]) for problem in problems]
    assert len({reply.text for reply in first}) == len(problems)
    written(tmp_path, env=TURNS.format(asked="str(random.random())"), reward="random.random()", taskset="changed = 1")
    assert [environment(name).answer(problem, ["x"]) for problem in get_task(name).split("train").load()] == first


@needs_package
@pytest.mark.parametrize("fault", ["1 / 0", "os._exit(1)"])
def test_an_environment_that_fails_on_what_a_model_wrote_proves_nothing(fault: str, tmp_path: Path) -> None:
    """The conversation ends without a reward, and the verdict is none; other words are answered as before."""
    name = written(tmp_path, env=TURNS.format(asked="'on'"), reward=f"{fault} if 'boom' in trace.last_reply else 1.0")
    task, [problem, *_] = get_task(name), get_task(name).split("train").load()
    reply = environment(name).answer(problem, ["x", "boom"])
    assert (reply.text, reply.done, reply.reward) == ("", True, 0.0)
    turns = [Turn(1, 1), Turn(5, 2)]
    assert graded_row(task, draw_of(problem, 0), "xboom", 2, False, turns=turns)["reason"] == "crash"
    assert environment(name).answer(problem, ["x", "y"]).text == "on"


@needs_package
def test_the_hash_holds_the_tasksets_code_and_options(tmp_path: Path) -> None:
    def hash_of(task: str) -> str:
        load_verifiers_task(task)
        return semantic_hash(small_spec({"task.train": task, "task.template": "plain", "eval.template": "plain"}))

    name = written(tmp_path)
    first = hash_of(name)
    [module] = user_code(small_spec({"task.train": name}))
    assert f"verifiers:{module.name}" == name
    assert hash_of(f"{name}?size=2") != first
    written(tmp_path, reward="0.5")
    assert hash_of(name) != first
    written(tmp_path)
    assert hash_of(name) == first


def test_verifiers_is_imported_only_in_a_process_of_its_own() -> None:
    assert "verifiers" not in sys.modules or any("test_verifiers" in one for one in sys.argv)
