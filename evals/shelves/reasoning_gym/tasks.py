"""Tasks of the package reasoning-gym (Stojanovski et al., arXiv:2505.24760), by name and options.

    reasoning_gym:gsm_symbolic
    reasoning_gym:chain_sum?min_terms=2&max_terms=4
    reasoning_gym:basic_arithmetic?operators=["+","-"]

An option is a field of the package's own configuration of the task. Its value is JSON, or bare text for a text field.
`size` is the number of training problems. The package is imported when such a task is first named.

Problems come from one stream with a fixed seed, without repetitions: the first TEST_PROBLEMS are the test split, the
following ones the training split. So the splits never overlap. Problems are made when they are first read, which takes
a second for most tasks and minutes for some (sokoban, zebra_puzzles); a smaller `size` saves time.

The package's scorer of the task judges answers, in a separate process, because some scorers evaluate the model's text
as an expression. Scores are in [0, 1], and some scorers reward a mere attempt. An answer is correct if it has the full
score, 1.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from evals.errors import EvalError
from evals.grading import OWN, Reason
from evals.grading.worker_process import WORKER, WorkerProcess
from evals.tasks.base import Problem, Task, TaskFamily, with_options, written_options
from harness.errors import UnknownNameError, few, nearest

PREFIX = "reasoning_gym:"
TEST_PROBLEMS = 256
TRAIN_PROBLEMS = 2048
# The most draws per problem. A task that repeats itself more often has too few distinct problems.
MOST_DRAWS = 10
_STREAM_SEED = 0
_RECIPE_VERSION = 1
_INSTALL = "pip install -e '.[reasoning-gym]'"
_LIST = "python -c 'from reasoning_gym.factory import DATASETS; print(*sorted(DATASETS))'"
# The package pulls in numpy and matplotlib, whose libraries reserve far more address space than they use.
_MEMORY_BYTES = 8 << 30
# Longer texts are not answers: the longest references are boards of a few thousand characters.
MAX_CHARACTERS = 20_000
# The reference of problems for which the package has only a scorer.
_NO_REFERENCE = "(no reference: reasoning-gym's scorer decides)"


@lru_cache
def load_gym_task(name: str) -> Task:
    """Load the task named `reasoning_gym:<name>[?option=value&...]`.

    The loaded task's name is in canonical form: only options that differ from their defaults, sorted.

    Raises EvalError if the package is not installed, for an unknown task or option (naming the nearest), or for an
    invalid value.
    """
    data_set, _, written = name.removeprefix(PREFIX).partition("?")
    registry = _registry()
    if data_set not in registry:
        raise UnknownNameError("reasoning-gym task", data_set, registry, _LIST)
    config_class = registry[data_set][1]
    options = dict(_options(f"{PREFIX}{data_set}", config_class, written))
    size = options.pop("size", TRAIN_PROBLEMS)
    if size < 1:
        raise EvalError("evals.shelves.reasoning_gym.size_too_small", prefix=PREFIX, data_set=data_set, size=size)
    # Both splits use one stream with a fixed seed. `size` changes only its length.
    total = TEST_PROBLEMS + size
    config = config_class(**options, seed=_STREAM_SEED, size=total)
    try:
        config.validate()
    except (AssertionError, ValueError, TypeError) as error:
        raise EvalError(
            "evals.shelves.reasoning_gym.options_refused", prefix=PREFIX, data_set=data_set, error=error
        ) from error
    stream = _Stream(data_set, config, total)
    return Task(
        name=_canonical(data_set, config_class, options, size),
        template="answer_tag",
        grader=OWN,
        extract="answer_tag",
        margin_pp=1.0,
        splits={"train": _Split(stream, TEST_PROBLEMS, total), "test": _Split(stream, 0, TEST_PROBLEMS)},
    )


PROCESS = WorkerProcess("reasoning_gym", f"it needs reasoning-gym: {_INSTALL}", _MEMORY_BYTES)
"""The worker that runs the package's scorers."""
PROCESS.keep()


@dataclass(frozen=True)
class GymScorer:
    """The package's scorer for one problem, which runs in the worker."""

    data_set: str
    config: Any
    entry: dict[str, Any]

    def __call__(self, extracted: str) -> Reason:
        """Return `match` for an answer with the full score, 1. Raises EvalError if no worker starts."""
        if len(extracted) > MAX_CHARACTERS:
            return "unparsed"
        config, entry = _pickled(self.config), _pickled(self.entry)
        return PROCESS.ask({"task": self.data_set, "config": config, "entry": entry, "candidate": extracted})


@dataclass(frozen=True)
class _Stream:
    """The first `total` distinct problems of one configured task; the test split comes first."""

    data_set: str
    config: Any
    total: int

    @property
    def fingerprint(self) -> str:
        # The seed is fixed, and each split's fingerprint states its own range of the stream.
        options = {key: value for key, value in _as_json(self.config).items() if key not in ("seed", "size")}
        version = metadata.version("reasoning-gym")
        return f"reasoning-gym=={version}:v{_RECIPE_VERSION}:{self.data_set}:{json.dumps(options, sort_keys=True)}"

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems, made in a separate process.

        Raises EvalError if there are too few distinct problems, or if the package fails to make one.
        """
        request = pickle.dumps((self.data_set, self.config, self.total, MOST_DRAWS))
        command = [sys.executable, "-P", str(WORKER), "problems"]
        # Some data sets iterate over sets of strings, whose order depends on the hash seed.
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        done = subprocess.run(command, input=request, capture_output=True, env=environment, check=False)
        if done.returncode:
            last_line = (done.stderr.decode(errors="replace").strip().splitlines() or ["it was killed"])[-1]
            raise EvalError(
                "evals.shelves.reasoning_gym.problems_not_made", prefix=PREFIX, data_set=self.data_set, error=last_line
            )
        made: list[tuple[int, dict[str, Any]]] = pickle.loads(done.stdout)
        if len(made) < self.total:
            raise EvalError(
                "evals.shelves.reasoning_gym.too_few_different_problems",
                prefix=PREFIX,
                data_set=self.data_set,
                n_draws=MOST_DRAWS * self.total,
                n_made=len(made),
                n_needed=self.total,
                n_test=TEST_PROBLEMS,
            )
        return [
            Problem(
                id=f"{self.data_set}-{number:06d}",
                problem=entry["question"],
                answer=entry["answer"] or _NO_REFERENCE,
                own_comparison=GymScorer(self.data_set, self.config, entry),
            )
            for number, entry in made
        ]


@dataclass(frozen=True)
class _Split:
    """The problems of a stream from index `first` up to, but not including, `end`."""

    stream: _Stream
    first: int
    end: int

    @property
    def fingerprint(self) -> str:
        return f"{self.stream.fingerprint}:{self.first}-{self.end}"

    def load(self) -> Sequence[Problem]:
        return self.stream.problems[self.first : self.end]


def _registry() -> dict[str, tuple[Any, Any]]:
    """Map each task to (class of its data set, class of its configuration).

    Raises EvalError if the package is not installed.
    """
    try:
        # The import fills the registry. Its prints must not mix with a program's own output.
        with contextlib.redirect_stdout(sys.stderr):
            import reasoning_gym  # noqa: F401
            from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise EvalError(
            "evals.shelves.reasoning_gym.package_not_installed", prefix=PREFIX, error=error, install=_INSTALL
        ) from error
    return dict(DATASETS)


def _options(task: str, config_class: Any, written: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each option. Raises EvalError for an unknown or repeated option."""
    hints = get_type_hints(config_class)
    settable = [option.name for option in dataclasses.fields(config_class) if option.name != "seed"]
    for name, text in written_options(task, written).items():
        if name == "seed":
            raise EvalError("evals.shelves.reasoning_gym.seed_as_option", task=task)
        if name not in settable:
            raise EvalError(
                "evals.shelves.reasoning_gym.unknown_option",
                task=task,
                option=name,
                nearest=nearest(name, settable),
                known=few(settable),
            )
        yield name, _value(f"{task}: option {name}", hints[name], text)


def _value(option: str, wanted: Any, text: str) -> Any:
    """Parse the text as JSON of the wanted type; failing that, take it as a string (text, enumerations, dates)."""
    # Try JSON first, so that `3` is a number in a numeric field.
    adapter: TypeAdapter[Any] = TypeAdapter(wanted)
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as as_json:
        try:
            return adapter.validate_json(json.dumps(text), strict=True)
        except ValidationError as error:
            faults = as_json if text[:1] in "[{" else error
            reasons = "; ".join(dict.fromkeys(fault["msg"] for fault in faults.errors()))
            choices = [str(choice) for fault in error.errors() for choice in _choices(fault)]
            raise EvalError(
                "evals.shelves.reasoning_gym.option_value_not_valid",
                option=option,
                value=text,
                reasons=reasons,
                nearest=nearest(text, choices),
            ) from error


def _choices(fault: Any) -> list[str]:
    """Return the values listed in a validation fault of an enumeration or a literal: "'a', 'b' or 'c'"."""
    return [part.strip(" '") for part in fault.get("ctx", {}).get("expected", "").replace(" or ", ",").split(",")]


def _canonical(data_set: str, config_class: Any, options: dict[str, Any], size: int) -> str:
    """Return a task's canonical name: with only the options that differ from their defaults, sorted."""
    defaults = _as_json(config_class())
    given = _as_json(config_class(**options))
    changed = {key: value for key, value in given.items() if value != defaults[key]}
    if size != TRAIN_PROBLEMS:
        changed["size"] = size
    return with_options(f"{PREFIX}{data_set}", changed)


def _as_json(config: Any) -> dict[str, Any]:
    values: dict[str, Any] = TypeAdapter(type(config)).dump_python(config, mode="json", warnings=False)
    return values


def _pickled(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


FAMILY = TaskFamily(
    PREFIX,
    f"{PREFIX}<name>[?option=value&...]",
    "any task of reasoning-gym; needs pip install -e '.[reasoning-gym]'; grader own; splits train, test",
    load_gym_task,
)
