"""The worker program that plays environments of the package verifiers.

It is started by its path, so that it imports nothing of this project:

    _player.py verifiers <memory_bytes> <cpu_limit_s>

It prints `ready`, then answers each line of JSON on stdin with a line on stdout. A request names a `taskset`, its
`options`, and the `folder` of the user's module. `do` selects the action:

    open    return the most turns that the environment gives its agent
    load    return its first `most` tasks, each with its agent's prompt
    play    play an episode in which the agent says these texts, one per turn

A `refused` in the answer says why bench cannot use the environment. A request that exceeds its CPU time kills the
process.

An episode is the environment's own `run`, with an agent that recites fixed texts. It is always played from the
beginning, so there is no state to keep. If the environment requests another turn after the last text, the agent reports
that it has no turns left, and the environment scores what was said.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import random
import resource
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import verifiers.v1 as vf
from pydantic import BaseModel, ValidationError
from verifiers import __version__
from verifiers.v1.agent import Segment
from verifiers.v1.dialects import parse_message
from verifiers.v1.episode import EnvInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.types import content_text
from verifiers.v1.utils.decorators import discover_decorated, invoke
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

DEFAULT_TURNS = 8
"""The limit on turns for an environment that sets none."""
LOAD_LIMIT_S = 1200.0
TRIAL = "x"
"""The agent's reply in the trial episode."""
MOST_CHARACTERS = 300
"""The most characters of an error message to report."""
# The most draws per task. A stream that repeats itself more often has too few distinct tasks.
MOST_DRAWS = 10
# Audit events that must not occur in an episode, because it would then depend on more than the agent's words.
_NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
VERSION = vf.VersionInfo(version=__version__)
"""Passed to each trace, which would otherwise ask git for the version."""
_CHANGES = "it does not do the same when the same is said"


class PlayerRefusedError(BaseException):
    """The environment needs what bench cannot provide. A BaseException, so `except Exception` does not catch it."""


class _Now:
    """The state of the current episode, which the audit hook reads."""

    playing = False
    refused: str | None = None


def refuse(why: str) -> PlayerRefusedError:
    """Build the error to raise, and remember the reason, because the environment may swallow the exception."""
    _Now.refused = _Now.refused or why
    return PlayerRefusedError(why)


def watch(event: str, arguments: object) -> None:
    """Refuse network access and programs during an episode. This is an audit hook."""
    if _Now.playing and event in (*_NETWORK, *_PROGRAMS):
        raise refuse("it uses the network" if event in _NETWORK else "it starts a program")


def main() -> None:
    _, memory_bytes, cpu_limit_s = sys.argv[1:]
    # Whatever an environment prints must not get among the replies.
    replies = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if sys.platform == "linux":  # macOS does not enforce this limit and refuses to set it.
        resource.setrlimit(resource.RLIMIT_AS, (int(memory_bytes), int(memory_bytes)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # An audit hook cannot be removed, so `_Now.playing` switches it on and off.
    sys.addaudithook(watch)
    with os.fdopen(replies, "w", encoding="ascii") as stdout:
        print("ready", file=stdout, flush=True)
        for line in sys.stdin.buffer:
            request = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, LOAD_LIMIT_S if request["do"] == "load" else float(cpu_limit_s))
            try:
                # Only after our own imports, because a user's file may have the name of a package.
                if request["folder"] not in (None, *sys.path):
                    sys.path.insert(0, request["folder"])
                reply = {"open": opened, "load": loaded, "play": played}[request["do"]](request)
            except PlayerRefusedError as error:
                reply = {"refused": str(error)}
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(reply), file=stdout, flush=True)


def opened(request: dict[str, Any]) -> dict[str, Any]:
    """Return the most turns that an environment gives its agent."""
    env = environment(request["taskset"], json.dumps(request["options"]))
    [(role, agent)] = roles(env)
    for name in request["options"]:
        if name.startswith(f"{role}.") and name != f"{role}.max_turns":
            raise refuse(f"bench takes the agent's place: of {role}.* only {role}.max_turns is an option, not {name}")
    # The environment's default `run` has a single turn.
    asks_once = type(env).run is vf.SingleAgentEnv.run
    return {"max_turns": agent.max_turns or (1 if asks_once else DEFAULT_TURNS)}


def loaded(request: dict[str, Any]) -> dict[str, Any]:
    """Return the first tasks. Tasks that differ only in number and name count as one.

    The first task also plays a trial episode, so that an unplayable environment is refused before training.
    """
    env = environment(request["taskset"], json.dumps(request["options"]))
    most, tasks = request["most"], dict[str, dict[str, Any]]()
    try:
        for task in itertools.islice(env.taskset, MOST_DRAWS * most):
            data = task.data.model_dump(mode="json", exclude_defaults=True)
            content = {name: value for name, value in data.items() if name not in ("idx", "id", "name")}
            tasks.setdefault(json.dumps(content, sort_keys=True), data)
            if len(tasks) == most:
                break
    except Exception as error:  # other people's code
        raise refuse(f"its tasks cannot be loaded: {in_words(error)}") from error
    found = []
    for data in tasks.values():
        [prompt, *_] = play(env, data, [])["asks"] or [None]
        if prompt is None:
            raise refuse("it asks its agent nothing")
        found.append({"data": data, "prompt": prompt})
    for one in found[:1]:
        tried = played({**request, "data": one["data"], "said": [TRIAL]})
        if "failed" in tried:
            raise refuse(f"a trial episode, in which the agent says {TRIAL!r}, fails: {tried['failed']}")
    return {"tasks": found}


def played(request: dict[str, Any]) -> dict[str, Any]:
    """Return the environment's text after the agent's last one, and the agent's reward.

    `asked` is None if the episode is over. If the environment fails on these texts, the result has the reason as
    `failed`.
    """
    env = environment(request["taskset"], json.dumps(request["options"]))
    data, said = request["data"], request["said"]
    task = json.dumps([request["taskset"], request["options"], data])
    # Play the first episode of a task twice, to refuse environments whose replies depend on more than the agent's
    # words.
    is_first = not _asked(task, ())
    episode = play(env, data, said)
    for count, asked in enumerate(episode["asks"]):
        known = _asked(task, tuple(said[:count]))
        known[:] = known or [asked]
        if known != [asked]:
            raise refuse(f"{_CHANGES}: {known[0]!r} was asked first, then {asked!r}")
    if is_first:
        again = play(env, data, said)
        if (episode["asks"], episode.get("reward")) != (again["asks"], again.get("reward")):
            raise refuse(f"{_CHANGES}: two episodes differed")
    if "failed" in episode:
        return episode
    asks = episode["asks"]
    return {"asked": asks[len(said)] if len(asks) > len(said) else None, "reward": episode["reward"]}


@lru_cache(maxsize=4096)
def _asked(task: str, said: tuple[str, ...]) -> list[str]:
    """Return the cached list with the environment's text after these turns. It is empty until `played` fills it.

    task: the taskset, its options and the task's data, as JSON.
    said: the agent's texts.
    """
    return []


def play(env: Any, data: dict[str, Any], said: Sequence[str]) -> dict[str, Any]:
    """Play an episode; return the environment's texts before each agent turn and at the end, and the reward."""
    task_type = type(env.taskset).task_type()
    task = task_type(task_type.data_type().model_validate(data), env.config.taskset.task)
    [(_, config)] = roles(env)
    agent = Reciting(config, said)
    seed = json.dumps(data)
    # Seed both global generators by the task alone, so that an episode is the same each time it is played.
    random.seed(seed)
    np.random.seed(zlib.crc32(seed.encode()))
    with playing():
        try:
            asyncio.run(episode_of(env, task, agent))
        except Exception as error:  # noqa: BLE001  # other people's code on what a model wrote: counted, not raised
            return {"asks": agent.asks, "failed": in_words(error)}
    if agent.trace is None:
        raise refuse("it asks its agent nothing")
    if not np.isfinite(agent.trace.reward):
        raise refuse(f"it gives the reward {agent.trace.reward}")
    return {"asks": agent.asks, "reward": float(agent.trace.reward)}


@contextmanager
def playing() -> Iterator[None]:
    """Watch the block as an episode, and raise PlayerRefusedError at its end if anything was refused in it."""
    _Now.playing, _Now.refused = True, None
    try:
        yield
    finally:
        _Now.playing = False
        if _Now.refused is not None:
            raise PlayerRefusedError(_Now.refused)


async def episode_of(env: Any, task: Any, agent: Reciting) -> None:
    """Play one episode with this agent, in the same way as verifiers."""
    agents = vf.Agents(env.config, lambda name, config: agent)
    recorded = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    episode = vf.Episode(env=EnvInfo(id=env.config.env_id), task=recorded)
    await env.setup(agents)
    await env.run(task, agents)
    if agent.trace is not None:
        episode.traces.append(agent.trace)
        await env.finalize(task, episode)


class Reciting:
    """Replaces an episode's only agent (`verifiers.v1.agent.Agent`), and says fixed texts, one per turn."""

    trainable = True

    def __init__(self, config: Any, said: Sequence[str]) -> None:
        self.config, self.said = config, said
        self.asks: list[str] = []
        self.trace: Any = None

    async def run(self, task: Any, **others: object) -> Any:
        async with self.interaction(task, **others) as interaction:
            await interaction.turn()
            interaction.trace.stop("agent_completed")
        return self.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **others: object) -> AsyncIterator[Recitation]:
        if self.trace is not None:
            raise refuse("its agent plays more than once in an episode, and a completion is one conversation")
        if others.get("runtime") is not None or others.get("tools"):
            raise refuse("it gives its agent a sandbox or tools")
        require_no_help(task)
        recorded = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self.trace = vf.Trace(
            verifiers=VERSION, task=recorded, state=state_cls(type(task))(), agent=AgentInfo(config=self.config)
        )
        await invoke(task.setup, {"trace": self.trace, "runtime": None})
        yield Recitation(self, task)
        self.trace.stop("user_closed")
        await invoke(task.finalize, {"trace": self.trace, "runtime": None})
        await task.score(self.trace)
        self.trace.ok = True

    def __getattr__(self, name: str) -> Any:
        raise refuse(f"it uses its agent's `{name}`")


class Recitation:
    """Replaces `verifiers.v1.agent.Interaction`."""

    def __init__(self, agent: Reciting, task: Any) -> None:
        self._agent, self._task, self._over = agent, task, False
        self.trace = agent.trace

    async def turn(self, message: Any = None) -> Segment:
        """Record the message and the agent's next text. Ends the conversation at a limit or after the last text."""
        trace, data = self.trace, self._task.data
        messages = [vf.UserMessage(content=message)] if isinstance(message, str) else parsed(message)
        if not trace.nodes and message is None:
            messages = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else parsed(data.prompt)
        if not messages or (message is not None and not trace.nodes and data.prompt is not None):
            raise ValueError("the task's prompt or the first turn's message opens a conversation, and only one of them")
        if not trace.nodes and data.system_prompt is not None:
            messages = [vf.SystemMessage(content=data.system_prompt), *messages]
        if self._over:
            raise RuntimeError("the conversation is over")
        if not await self._stops():
            self._agent.asks.append(text_of(messages, opening=not trace.nodes))
            if trace.num_turns == len(self._agent.said):
                trace.stop("max_turns")
        if trace.stop_condition is not None:
            self._over = True
            return Segment(messages=[], terminated=True)
        said = vf.AssistantMessage(content=self._agent.said[trace.num_turns])
        for one in (*messages, said):
            parent = len(trace.nodes) - 1 if trace.nodes else None
            trace.nodes.append(MessageNode(parent=parent, message=one, sampled=one is said))
        return Segment(messages=[said])

    async def _stops(self) -> bool:
        """Return whether the task or the agent's limit ends the conversation before another turn."""
        most = self._agent.config.max_turns
        if most is not None and self.trace.num_turns >= most:
            self.trace.stop("max_turns")
        for stop in self._task.hooks("stop"):
            if self.trace.stop_condition is None and await call_hook(stop, {vf.Trace: self.trace}):
                self.trace.stop(stop.__name__)
        return self.trace.stop_condition is not None

    def __getattr__(self, name: str) -> Any:
        raise refuse(f"it uses its interaction's `{name}`")


def parsed(messages: Any) -> list[Any]:
    return [parse_message(one) if isinstance(one, dict) else one for one in messages or []]


def text_of(messages: Sequence[Any], opening: bool) -> str:
    """Join the texts of the messages into one user message.

    opening: a system message may be among them. Its text is merged in, as verifiers itself does for a program that
    accepts no system message.
    """
    for one in messages:
        if one.role not in (("system", "user") if opening else ("user",)):
            raise refuse(f"it gives its agent a message of the role {one.role}, and bench only user messages")
        if not isinstance(one.content, str) and any(part.type != "text" for part in one.content):
            raise refuse("it shows images")
    return "\n\n".join(content_text(one.content) for one in messages)


@lru_cache(maxsize=8)
def environment(taskset: str, options: str) -> Any:
    """Load the environment of a taskset. options: a JSON object with dotted names."""
    config: dict[str, Any] = {}
    for name, value in {**json.loads(options), "taskset.id": taskset}.items():
        *above, last = name.split(".")
        section = config
        for part in above:
            section = section.setdefault(part, {})
        section[last] = value
    try:
        env = load_environment(resolve_env_config(config))
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise refuse(f"verifiers refuses these options: {'; '.join(faults)}") from error
    except Exception as error:  # other people's code
        raise refuse(f"it cannot be loaded: {in_words(error)}") from error
    require_one_agent(env)
    return env


def roles(env: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in env.config if isinstance(value, vf.AgentConfig)]


def require_one_agent(env: Any) -> None:
    """Refuse an environment with several agents, servers, tools, functions named by path, or a model that judges."""
    names = [name for name, _ in roles(env)]
    if len(names) > 1:
        raise refuse(f"it has {len(names)} agents ({', '.join(names)}), and bench trains one that plays alone")
    # An environment launches servers by overriding `start`.
    if type(env).start is not vf.Env.start:
        raise refuse("it starts servers of its own")
    task_type = type(env.taskset).task_type()
    if env.taskset.toolsets(env.config.taskset) or task_type.toolsets(env.config.taskset.task):
        raise refuse("it has tools, which programs in a sandbox call")
    hooks = env.config.taskset.task
    if any(one.fn is not None for one in (*hooks.rewards.values(), *hooks.metrics.values(), *hooks.stops.values())):
        raise refuse("an option names a function by path, and no hash covers its code; make it a method of the task")
    if judges := list(judges_in(env.config)):
        raise refuse(f"another model judges its tasks ({', '.join(judges)})")


def judges_in(config: BaseModel, above: str = "") -> Iterator[str]:
    """Yield the dotted names of settings that configure a judge model."""
    for name, value in config:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, vf.JudgeConfig):
                yield f"{above}{name}"
            elif isinstance(one, BaseModel) and not isinstance(one, vf.AgentConfig):
                yield from judges_in(one, f"{above}{name}.")


def require_no_help(task: Any) -> None:
    """Refuse a task that needs more than the agent's words, such as a sandbox or a container."""
    for hook in ("setup", "finalize"):
        method = getattr(type(task), hook)
        if method is not getattr(vf.Task, hook) and "runtime" in inspect.signature(method).parameters:
            raise refuse(f"its tasks need a sandbox ({hook})")
    if task.NEEDS_CONTAINER or task.data.image is not None:
        raise refuse("its tasks need a container")
    if discover_decorated(task, "intercept"):
        raise refuse("it rewrites what the model reads or writes")
    for stop in task.hooks("stop"):
        if hook_boundary(stop, allow_trace=True) is not vf.Trace:
            raise refuse(f"its stop `{stop.__name__}` looks at requests to a model")
    for scores in (*task.hooks("reward"), *task.hooks("metric")):
        runtime = inspect.signature(scores).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            raise refuse(f"its score `{scores.__name__}` is computed in a sandbox")


def in_words(error: BaseException) -> str:
    """Describe the error that the environment raised, without the verifiers errors that wrap it."""
    while isinstance(error, vf.RolloutError) and error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[:MOST_CHARACTERS]}"


if __name__ == "__main__":
    main()
