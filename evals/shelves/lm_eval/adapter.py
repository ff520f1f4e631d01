"""Runs of lm-eval that sample with one of bench's samplers."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from evals.errors import EvalError
from evals.lm_eval_results import LmEvalMetric, LmEvalResult, LmEvalRow, LmEvalTask
from evals.prompts import Message
from evals.sampler import Draw, Drawn, Sampler, SamplingParams
from evals.shelves.lm_eval.documents import stops_of, without_stop
from evals.shelves.lm_eval.loading import GENERATE, installed, load_tasks, require_output_type, task_manager

DEFAULT_MAX_GEN_TOKS = 256
"""The limit on a completion's length for tasks that set none (gsm8k, minerva_math500). It equals that of lm-eval's hf
backend, so that scores are comparable. It truncates reasoning, so its use is logged and recorded in the result.
"""

# The number of bootstrap samples for a standard error without a closed form. The standard error of a mean has one.
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
    """Run tasks of lm-eval by `lm_eval.simple_evaluate`, with completions from a sampler.

    tasks: names of tasks, groups or tags: lm-eval's, those of `OWN_TASKS`, or those of `include_path`. For a group, a
    tag, or a task that is not in a file of the same name, lm-eval reads its complete index, which takes 10 seconds or
    more.
    max_gen_toks: the limit of every completion, overriding task files; None to use theirs, or DEFAULT_MAX_GEN_TOKS.
    limit: how many documents to use per task, from the first, at least 1; None for all.
    apply_chat_template: True to send prompts as messages, with few-shot examples as turns; otherwise as text.

    A sample's noise depends only on task, document and sample number, so it is the same for every model.

    All errors are EvalErrors, raised before anything is sampled:
    * lm-eval is not installed.
    * This is not the main thread: lm-eval's mathematics tasks use signals, and mark every answer wrong in other
      threads.
    * A task is unknown (the message names the nearest) or cannot be loaded.
    * A task needs log-likelihoods or more than text, runs code that the model wrote, or needs a sampling setting that
      samplers do not have.
    """
    if limit is not None and limit < 1:
        raise EvalError("evals.shelves.lm_eval.limit_too_small", limit=limit)
    if not tasks:
        raise EvalError("evals.shelves.lm_eval.no_task_named")
    if threading.current_thread() is not threading.main_thread():
        raise EvalError("evals.shelves.lm_eval.not_in_main_thread")
    lm_eval = installed()
    drawing = _Drawing(sampler, apply_chat_template, max_gen_toks)
    # lm-eval prints progress and notes to stdout, which is reserved for the caller's results.
    with contextlib.redirect_stdout(sys.stderr):
        manager = task_manager(tasks, include_path)
        loaded = list(load_tasks(tasks, manager, (GENERATE,)))
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


class _Drawing:
    """Samples lm-eval's requests, and keeps what lm-eval does not record."""

    def __init__(self, sampler: Sampler, chat: bool, max_gen_toks: int | None) -> None:
        self._sampler = sampler
        self._chat = chat
        self._max_gen_toks = max_gen_toks
        self.drawn: dict[tuple[str, int], list[Drawn]] = defaultdict(list)
        self.decodings: dict[str, list[SamplingParams]] = defaultdict(list)
        self.assumed: set[str] = set()

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the completions of lm-eval's requests [N].

        K samples of a document are K copies of the same request.
        """
        draws: list[Draw] = []
        # The sampler takes one set of parameters per call, but requests of different tasks arrive together.
        together: dict[SamplingParams, list[int]] = defaultdict(list)
        seen: Counter[str] = Counter()
        for position, request in enumerate(requests):
            # The sample's number is the count of earlier requests for the same document. It determines the noise.
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
                texts[position] = without_stop(one.text, params.stop)
        return texts

    def prompt(self, context: str) -> str | list[Message]:
        """Return the prompt of a request: text, or the messages that `apply_chat_template` wrote as JSON."""
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
        # A list keeps the order in which decodings first occur.
        if params not in self.decodings[task]:
            self.decodings[task].append(params)
        return params


def _params_of(task: str, settings: Mapping[str, Any], max_gen_toks: int | None) -> tuple[SamplingParams, bool]:
    """Convert lm-eval's generation settings to ours, and return whether their length is the default.

    Settings mean the same as in lm-eval's hf backend: greedy, unless `do_sample` or only a temperature is set.
    max_gen_toks: overrides the length in the settings.
    Raises EvalError for a setting that samplers do not have.
    """
    unknown = sorted(settings.keys() - _SETTINGS)
    if unknown:
        raise EvalError(
            "evals.shelves.lm_eval.sampling_settings_not_offered",
            task=task,
            settings=", ".join(unknown),
            known=", ".join(sorted(_SETTINGS)),
        )
    temperature = float(settings.get("temperature", 0.0))
    if settings.get("do_sample") is False:
        temperature = 0.0
    elif settings.get("do_sample") and temperature == 0.0:
        raise EvalError("evals.shelves.lm_eval.sampling_without_temperature", task=task)
    lengths = [int(settings[name]) for name in _LENGTH_SETTINGS if settings.get(name) is not None]
    given = lengths if max_gen_toks is None else [max_gen_toks]
    # Greedy decoding ignores top_p and top_k, so their values must not make two decodings differ.
    greedy = temperature == 0.0
    params = SamplingParams(
        max_completion_tokens=given[0] if given else DEFAULT_MAX_GEN_TOKS,
        temperature=temperature,
        top_p=1.0 if greedy else float(settings.get("top_p", 1.0)),
        top_k=0 if greedy else max(0, int(settings.get("top_k", 0))),
        stop=stops_of(settings),
    )
    return params, not given


def _language_model(drawing: _Drawing) -> Any:
    """Build an `lm_eval.api.model.LM` that generates by `drawing`."""
    from lm_eval.api.model import LM

    # The class is defined here because its base is importable only if lm-eval is installed.
    class SamplerLM(LM):  # type: ignore[misc]  # lm-eval is not typed
        tokenizer_name = "sampler"

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return drawing.generate_until(requests)

        def loglikelihood(self, requests: Sequence[Any]) -> Any:
            require_output_type(requests[0].task_name, "loglikelihood", (GENERATE,))

        loglikelihood_rolling = loglikelihood

        def apply_chat_template(self, chat_history: list[Message], add_generation_prompt: bool = True) -> str:
            """Return the messages as one string, which lm-eval expects and `_Drawing.prompt` parses."""
            if not add_generation_prompt:
                raise EvalError("evals.shelves.lm_eval.gen_prefix_with_chat", question=chat_history[-2]["content"][:80])
            return json.dumps(chat_history)

    return SamplerLM()


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
    """Yield the metrics of a task.

    lm-eval's keys are `<metric>,<filter>` and `<metric>_stderr,<filter>`. The value of the second is "N/A" if there is
    no standard error.
    """
    for key, value in scores.items():
        name, comma, filter_name = key.partition(",")
        if comma and not name.endswith("_stderr"):
            stderr = scores[f"{name}_stderr,{filter_name}"]
            yield LmEvalMetric(task, name, filter_name, float(value), None if stderr == "N/A" else float(stderr))


def _row(task: str, sample: Mapping[str, Any], drawing: _Drawing) -> LmEvalRow:
    drawn, target = drawing.drawn[task, sample["doc_id"]], sample["target"]
    return LmEvalRow(
        task=task,
        doc_id=sample["doc_id"],
        doc_hash=sample["doc_hash"],
        filter=sample["filter"],
        prompt=drawing.prompt(sample["arguments"][0][0]),
        reference=target if isinstance(target, str) else json.dumps(target, ensure_ascii=False, default=str),
        completions=[text for texts in sample["resps"] for text in texts],
        n_tokens=[one.n_tokens for one in drawn],
        truncated=[one.truncated for one in drawn],
        filtered=sample["filtered_resps"][0],
        metrics={name: float(sample[name]) for name in sample["metrics"] if isinstance(sample[name], Real)},
    )
