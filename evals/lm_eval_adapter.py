"""lm-eval's tasks on a sampler of ours.

The only file that knows lm-eval's interfaces. They are those of 0.4.13, and 0.5 has others: filters become scorers.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from evals.errors import EvalError
from evals.lm_eval_result import LmEvalMetric, LmEvalResult, LmEvalRow, LmEvalTask
from evals.prompts import Message
from evals.sampler import Draw, Drawn, Sampler, SamplingParams
from harness.errors import RefusedError, nearest

OWN_TASKS = Path(__file__).with_name("lm_eval_tasks")
"""Our own task files, over rows in $BENCH_DATA. Every run finds them."""
DEFAULT_MAX_GEN_TOKS = 256
"""The limit for a task that does not say how long a completion may be (gsm8k, minerva_math500): that of lm-eval's hf
backend, so that scores compare. It cuts reasoning short, so it is logged whenever it is used, and kept in the
result."""

# What a task file says of paths; the documents themselves identify a task.
_SOURCE_OF_DOCUMENTS = ("dataset_path", "dataset_kwargs", "metadata")
# Which examples stand before a question; as in lm-eval's own runs.
_FEW_SHOT_SEED = 1234
_INSTALL = "pip install -e '.[lm-eval]'"
# Draws for a standard error that has no closed form; that of a mean has one.
_BOOTSTRAP_DRAWS = 1000
_LENGTH_SETTINGS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SETTINGS = frozenset({*_LENGTH_SETTINGS, "until", "do_sample", "temperature", "top_p", "top_k"})
_log = logging.getLogger(__name__)


def run_lm_eval(
    tasks: Sequence[str],
    sampler: Sampler,
    *,
    max_gen_toks: int | None = None,
    limit: int | None = None,
    include_path: Path | None = None,
    apply_chat_template: bool = False,
) -> LmEvalResult:
    """Run tasks of lm-eval by `lm_eval.simple_evaluate`, its completions drawn by a sampler.

    tasks: names of tasks, groups or tags: lm-eval's, those of `OWN_TASKS`, those of `include_path`. Naming a group, a
        tag or a task that is not in a file of its name reads lm-eval's whole index, which takes 10 seconds or more.
    max_gen_toks: the limit of every completion, whatever task files say; None: as they say, or DEFAULT_MAX_GEN_TOKS.
    limit: how many documents of each task, from its first, at least 1; None for all.
    apply_chat_template: prompts are messages, few-shot examples among them as turns; otherwise text.
    A sample's noise is keyed by task, document and sample, so it is the same for every model.

    Raises EvalError, before anything is drawn, if lm-eval is not installed or not in the main thread (its mathematics
    tasks use signals, and mark every answer wrong elsewhere), and for a task that is unknown (it names the nearest),
    cannot be loaded, needs log-likelihoods or more than text, runs code that the model wrote, or asks for a way of
    drawing that a sampler does not have.
    """
    if limit is not None and limit < 1:
        raise EvalError(f"limit is {limit}; it counts the documents of a task, so give at least 1, or none for all")
    if not tasks:
        raise EvalError("no lm-eval task is named; name at least one, such as gsm8k_local")
    if threading.current_thread() is not threading.main_thread():
        raise EvalError("lm-eval's mathematics tasks use signals, which only a main thread has: run them in that one")
    lm_eval = _installed()
    drawing = _Drawing(sampler, apply_chat_template, max_gen_toks)
    # It prints progress and notes to stdout, which belongs to our caller's results.
    with contextlib.redirect_stdout(sys.stderr):
        manager = _task_manager(tasks, include_path)
        loaded = list(_load(tasks, manager))
        outcome = lm_eval.simple_evaluate(
            model=_language_model(drawing),
            tasks=loaded,
            task_manager=manager,
            limit=limit,
            bootstrap_iters=_BOOTSTRAP_DRAWS,
            apply_chat_template=apply_chat_template,
        )
    names = list(outcome["samples"])
    return LmEvalResult(
        tuple(_task(name, outcome, drawing) for name in names),
        tuple(metric for name in names for metric in _metrics(name, outcome["results"][name])),
        tuple(_row(name, sample, drawing) for name in names for sample in outcome["samples"][name]),
    )


def _installed() -> Any:
    """The package. Raises EvalError if it is not installed."""
    try:
        import lm_eval
    except ModuleNotFoundError as error:
        if error.name != "lm_eval":
            raise
        raise EvalError(f"lm-eval is not installed: {_INSTALL}") from error
    return lm_eval


@dataclass(frozen=True, eq=False)
class GenerationTask:
    """A task of lm-eval that is judged completion by completion, without lm-eval's evaluator.

    declared: what its task file says, functions by their source, but not where its documents are. prompts: of its
        documents, with few-shot examples.
    """

    name: str
    version: str
    declared: Mapping[str, Any] = field(repr=False)
    prompts: Sequence[str] = field(repr=False)
    _task: Any = field(repr=False)
    _requests: Sequence[Any] = field(repr=False)

    @classmethod
    def load(cls, name: str, folder: Path | None = None) -> GenerationTask:
        """The task of that name, with its documents. folder: where more task files are. Raises as `run_lm_eval`."""
        version = _installed().__version__
        with contextlib.redirect_stdout(sys.stderr):
            tasks = list(_load([name], _task_manager([name], folder)))
            if len(tasks) != 1:
                raise EvalError(f"{name} is a group of {len(tasks)} tasks of lm-eval; name one task of it")
            (task,) = tasks
            task.set_fewshot_seed(_FEW_SHOT_SEED)
            task.build_all_requests()
        # With `repeats` a document has the same request several times.
        first = {request.doc_id: request for request in reversed(task.instances)}
        requests = [first[number] for number in sorted(first)]
        said = {key: value for key, value in task.dump_config().items() if key not in _SOURCE_OF_DOCUMENTS}
        return cls(name, version, said, [request.args[0] for request in requests], task, requests)

    def target(self, number: int) -> str:
        """The reference of a document as text."""
        return str(self._task.doc_to_target(self._requests[number].doc))

    def score(self, number: int, completion: str) -> float:
        """The first metric of the first filter. Raises EvalError if it is not a number for one completion."""
        request = copy.copy(self._requests[number])
        request.resps = [_without_stop(completion, _stops(request.args[1]))]
        request.filtered_resps = {}
        chosen, *_ = self._task._filters
        chosen.apply([request])
        metrics = self._task.process_results(request.doc, [request.filtered_resps[chosen.name]])
        name, value = next(iter(metrics.items()))
        if not isinstance(value, Real):
            fault = f"its metric {name} is no number for one completion; take a task with one such as exact_match"
            raise EvalError(f"lm-eval task {self.name}: {fault}")
        return float(value)


class _Drawing:
    """Draws what lm-eval requests, and keeps what lm-eval has no place for."""

    def __init__(self, sampler: Sampler, chat: bool, max_gen_toks: int | None) -> None:
        self._sampler = sampler
        self._chat = chat
        self._max_gen_toks = max_gen_toks
        self.drawn: dict[tuple[str, int], list[Drawn]] = defaultdict(list)
        self.decodings: dict[str, list[SamplingParams]] = defaultdict(list)
        self.assumed: set[str] = set()

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The completions of lm-eval's requests [N]. K samples of a document are the same request K times."""
        draws: list[Draw] = []
        together: dict[SamplingParams, list[int]] = defaultdict(list)
        seen: Counter[str] = Counter()
        for position, request in enumerate(requests):
            context, settings = request.args
            example = f"{request.task_name}/{request.doc_id}"
            draws.append(Draw(self.prompt(context), example, seen[example]))
            seen[example] += 1
            together[self._params(request.task_name, settings)].append(position)
        texts = [""] * len(requests)
        for params, positions in together.items():
            drawn = self._sampler.draw([draws[position] for position in positions], params)
            for position, one in zip(positions, drawn, strict=True):
                self.drawn[requests[position].task_name, requests[position].doc_id].append(one)
                texts[position] = _without_stop(one.text, params.stop)
        return texts

    def prompt(self, context: str) -> str | list[Message]:
        """The prompt of a request: messages, which `apply_chat_template` wrote as JSON, or text."""
        if not self._chat:
            return context
        messages: list[Message] = json.loads(context)
        return messages

    def _params(self, task: str, settings: Mapping[str, Any]) -> SamplingParams:
        params, assumed = _params_of(task, settings, self._max_gen_toks)
        if assumed and task not in self.assumed:
            self.assumed.add(task)
            _log.warning(
                "lm-eval task %s does not say how many tokens a completion may have: at most %d are drawn",
                task,
                DEFAULT_MAX_GEN_TOKS,
            )
        if params not in self.decodings[task]:
            self.decodings[task].append(params)
        return params


def _params_of(task: str, settings: Mapping[str, Any], max_gen_toks: int | None) -> tuple[SamplingParams, bool]:
    """lm-eval's generation settings as ours, and whether their length is the default.

    Meanings are those of lm-eval's hf backend: greedy unless sampling is asked for, or a temperature is given without
    `do_sample`. max_gen_toks: in place of the length that the settings have.
    """
    unknown = sorted(settings.keys() - _SETTINGS)
    if unknown:
        raise EvalError(
            f"lm-eval task {task} wants completions drawn with {', '.join(unknown)}, which changes scores and which "
            f"samplers here do not have; they have {', '.join(sorted(_SETTINGS))}. Take the setting out of a copy of "
            "its task file, or take another task"
        )
    temperature = float(settings.get("temperature", 0.0))
    if settings.get("do_sample") is False:
        temperature = 0.0
    elif settings.get("do_sample") and temperature == 0.0:
        raise EvalError(
            f"lm-eval task {task} has `do_sample: true` without a temperature above 0, which is neither sampling nor "
            "greedy: give it a temperature, or `do_sample: false`"
        )
    lengths = [int(settings[name]) for name in _LENGTH_SETTINGS if settings.get(name) is not None]
    given = lengths if max_gen_toks is None else [max_gen_toks]
    greedy = temperature == 0.0
    params = SamplingParams(
        max_completion_tokens=given[0] if given else DEFAULT_MAX_GEN_TOKS,
        temperature=temperature,
        top_p=1.0 if greedy else float(settings.get("top_p", 1.0)),
        top_k=0 if greedy else max(0, int(settings.get("top_k", 0))),
        stop=_stops(settings),
    )
    return params, not given


def _stops(settings: Mapping[str, Any]) -> tuple[str, ...]:
    until = settings.get("until") or []
    return tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop)


def _without_stop(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def _language_model(drawing: _Drawing) -> Any:
    """An `lm_eval.api.model.LM` that generates by `drawing`."""
    from lm_eval.api.model import LM

    class SamplerLM(LM):  # type: ignore[misc]  # lm-eval is not typed
        tokenizer_name = "sampler"

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return drawing.generate_until(requests)

        def loglikelihood(self, requests: Sequence[Any]) -> Any:
            _require_generation(requests[0].task_name, "loglikelihood")

        loglikelihood_rolling = loglikelihood

        def apply_chat_template(self, chat_history: list[Message], add_generation_prompt: bool = True) -> str:
            """One string, as lm-eval wants it; `_Drawing.prompt` reads it."""
            if not add_generation_prompt:
                raise EvalError(
                    "an lm-eval task begins the answer itself (`gen_prefix`), which no chat prompt here can carry: run "
                    f"it without the chat template. Its question: {chat_history[-2]['content'][:80]!r}"
                )
            return json.dumps(chat_history)

    return SamplerLM()


def _task_manager(names: Sequence[str], include_path: Path | None) -> Any:
    """A TaskManager that knows all of `names`, over as few folders as it can be.

    Raises EvalError if `include_path` is not a folder, and for an unknown name.
    """
    from lm_eval.tasks import TaskManager

    if include_path is not None and not include_path.is_dir():
        raise EvalError(f"include_path is {include_path}, which is not a folder; give one with lm-eval task files")
    folders = [OWN_TASKS] if include_path is None else [OWN_TASKS, include_path]
    few = TaskManager(include_path=[*_shipped_folders(names), *folders], include_defaults=False)
    # A group's members and a tag's tasks may be in any folder.
    if set(names) <= set(few.all_subtasks):
        return few
    manager = TaskManager(include_path=folders)
    for name in names:
        if name not in manager.task_index:
            raise EvalError(
                f"unknown lm-eval task {name!r}{nearest(name, manager.all_tasks)} `lm_eval ls tasks` lists lm-eval's; "
                f"{OWN_TASKS.name} has those over local rows; --include-path adds a folder of your own"
            )
    return manager


def _shipped_folders(names: Sequence[str]) -> list[Path]:
    """Folders of lm-eval that have a file `<name>.yaml` which declares the task of that name."""
    import lm_eval

    wanted = {
        f"{name}.yaml": re.compile(rf"^task:\s*['\"]?{re.escape(name)}['\"]?\s*$", re.MULTILINE) for name in names
    }
    return [
        Path(folder)
        for folder, _, files in os.walk(Path(lm_eval.__file__).parent / "tasks")
        if any(wanted[file].search(Path(folder, file).read_text("utf-8")) for file in wanted.keys() & set(files))
    ]


def _load(names: Sequence[str], manager: Any) -> Iterator[Any]:
    """The tasks of names, groups and tags, with their documents. Raises EvalError for one that cannot be run here."""
    from datasets.exceptions import DatasetsError

    # Known before any document is fetched, except where a task is a Python class.
    for name in names:
        _require_generation(name, (manager.task_index[name].cfg or {}).get("output_type", "generate_until"))
    for name in dict.fromkeys(names):
        try:
            loaded = manager.load([name])["tasks"]
        except RefusedError:
            raise
        except (OSError, ValueError, TypeError, LookupError, ImportError, AssertionError, DatasetsError) as error:
            raise EvalError(f"lm-eval task {name} cannot be loaded: {error}. {_remedy(str(error))}") from error
        for task_name, task in loaded.items():
            _require_generation(task_name, task.OUTPUT_TYPE)
            if getattr(task, "MULTIMODAL", False):
                raise EvalError(
                    f"lm-eval task {task_name} asks about images or sound, and samplers here take text only"
                )
            if getattr(task, "UNSAFE_CODE", False):
                raise EvalError(f"lm-eval task {task_name} runs code that the model wrote, which is not done here")
            yield task


def _remedy(fault: str) -> str:
    if "antlr4" in fault:
        return (
            "Give it an environment of its own, `make .venv-lm-eval`: the grader `math` of this package reads less "
            "(no percentages) with antlr 4.11"
        )
    return (
        f"If a package is missing: {_INSTALL}, and what lm-eval asks for. If its documents are: allow access to "
        f"the hub (HF_HUB_OFFLINE unset), or take a task over local rows from {OWN_TASKS.name}"
    )


def _require_generation(task: str, output_type: str) -> None:
    if output_type != "generate_until":
        raise EvalError(
            f"lm-eval task {task} is scored by log-likelihoods ({output_type}), and samplers here only generate: take "
            "a task of output type generate_until, or run this one with a backend of lm-eval's own"
        )


def _task(name: str, outcome: Mapping[str, Any], drawing: _Drawing) -> LmEvalTask:
    return LmEvalTask(
        name=name,
        version=str(outcome["versions"][name]),
        n_docs=outcome["n-samples"][name]["effective"],
        repeats=outcome["configs"][name].get("repeats", 1),
        decodings=tuple(drawing.decodings[name]),
        max_gen_toks_assumed=name in drawing.assumed,
    )


def _metrics(task: str, scores: Mapping[str, Any]) -> Iterator[LmEvalMetric]:
    """lm-eval's keys are `<metric>,<filter>` and `<metric>_stderr,<filter>`, the latter "N/A" where there is none."""
    for key, value in scores.items():
        name, comma, filter_name = key.partition(",")
        if comma and not name.endswith("_stderr"):
            stderr = scores[f"{name}_stderr,{filter_name}"]
            yield LmEvalMetric(task, name, filter_name, float(value), None if stderr == "N/A" else float(stderr))


def _row(task: str, sample: Mapping[str, Any], drawing: _Drawing) -> LmEvalRow:
    drawn = drawing.drawn[task, sample["doc_id"]]
    return LmEvalRow(
        task=task,
        doc_id=sample["doc_id"],
        doc_hash=sample["doc_hash"],
        filter=sample["filter"],
        prompt=drawing.prompt(sample["arguments"][0][0]),
        completions=[text for texts in sample["resps"] for text in texts],
        n_tokens=[one.n_tokens for one in drawn],
        truncated=[one.truncated for one in drawn],
        filtered=sample["filtered_resps"][0],
        metrics={name: float(sample[name]) for name in sample["metrics"] if isinstance(sample[name], Real)},
    )
