"""A task of lm-eval, document by document and without lm-eval's evaluator: prompts, and grading of answers."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from evals.choices import COMPARISONS, Choices, Comparison, Continuation
from evals.errors import EvalError
from evals.shelves.lm_eval.loading import GENERATE, installed, load_tasks, task_manager

# The settings of a task file that say where its documents are. They are left out, because the documents themselves
# identify a task.
_SOURCE_OF_DOCUMENTS = ("dataset_path", "dataset_kwargs", "metadata")
# The seed that selects the few-shot examples, as in lm-eval's own runs.
_FEW_SHOT_SEED = 1234
# For each output type, the metrics that decide whether a choice is correct. `acc` of a single text is greedy decoding.
_OF_CHOICES: Mapping[str, Mapping[str, Comparison]] = {
    "multiple_choice": {name: name for name in COMPARISONS},
    "loglikelihood": {"acc": "greedy"},
}
# A log-likelihood that loses every comparison with 0, whatever length it is divided by.
_NOT_CHOSEN = -1e9


@dataclass(frozen=True, eq=False)
class LmEvalDocuments:
    """The documents of one task of lm-eval."""

    name: str
    version: str
    declared: Mapping[str, Any] = field(repr=False)
    """The contents of the task file, with functions as source, but without the location of its documents."""
    comparison: Comparison | None
    """How choices are compared; None for a task that the model answers in its own words."""
    _task: Any = field(repr=False)
    _requests: Sequence[Sequence[Any]] = field(repr=False)

    @classmethod
    def load(cls, name: str, folder: Path | None = None) -> LmEvalDocuments:
        """Load the task with this name.

        folder: a folder with additional task files.
        Raises EvalError if lm-eval is not installed, or if the task is unknown or cannot be loaded or run here. A task
        must also have a document, and a metric that decides whether a single answer is correct.
        """
        version = installed().__version__
        with contextlib.redirect_stdout(sys.stderr):
            tasks = list(load_tasks([name], task_manager([name], folder), (GENERATE, *_OF_CHOICES)))
            if len(tasks) != 1:
                raise EvalError("evals.shelves.lm_eval.group_not_task", group=name, n_tasks=len(tasks))
            (task,) = tasks
            task.set_fewshot_seed(_FEW_SHOT_SEED)
            task.build_all_requests()
        # With `repeats`, a document has several copies of the same request.
        found: dict[int, dict[int, Any]] = defaultdict(dict)
        for request in task.instances:
            found[request.doc_id].setdefault(request.idx, request)
        if not found:
            raise EvalError("evals.shelves.lm_eval.task_without_documents", task=name)
        requests = [[found[number][index] for index in sorted(found[number])] for number in sorted(found)]
        said = {key: value for key, value in task.dump_config().items() if key not in _SOURCE_OF_DOCUMENTS}
        documents = cls(name, version, said, _comparison(name, task), task, requests)
        # Raise now, before anything is trained, if the metric is not a number for a single answer.
        documents.score(0, documents.target(0))
        return documents

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end a completion. Text after them is ignored."""
        return () if self.comparison else stops_of(self._requests[0][0].args[1])

    def asked(self, number: int) -> str:
        """Return a document as a reader sees it: the prompt with its few-shot examples, and one line per choice."""
        choices = self.choices(number)
        if choices is None:
            return str(self._requests[number][0].args[0])
        shown = choices.continuations[: len(choices.texts)]
        contexts = list(dict.fromkeys(one.context for one in shown))
        if len(contexts) == 1:
            return "\n".join([*contexts, *(f"-{one.text}" for one in shown)])
        return "\n".join(f"- {one.context}{one.text}" for one in shown)

    def choices(self, number: int) -> Choices | None:
        """Return the choices of a document; None for a task that the model answers in its own words."""
        if self.comparison is None:
            return None
        continuations = [Continuation(*request.args) for request in self._requests[number]]
        return Choices(self._texts(number), continuations, self.comparison)

    def target(self, number: int) -> str:
        """Return a document's reference as text; if several choices are correct, all of them."""
        if self.comparison is None:
            return str(self._task.doc_to_target(self._doc(number)))
        return " or ".join(text for text in self._texts(number) if self.score(number, text) >= 1)

    def score(self, number: int, answer: str) -> float:
        """Return the deciding metric of a completion, or of a choice given by its text.

        Raises EvalError if the metric is not a number.
        """
        if self.comparison is not None:
            return self._score_of_choice(number, answer)
        # The filters modify a request, so each answer needs a fresh one.
        request = copy.copy(self._requests[number][0])
        request.resps = [without_stop(answer, self.stop)]
        request.filtered_resps = {}
        chosen, *_ = self._task._filters
        chosen.apply([request])
        metrics = self._task.process_results(request.doc, [request.filtered_resps[chosen.name]])
        name, value = next(iter(metrics.items()))
        if not isinstance(value, Real):
            fault = f"its metric {name} is no number for one completion; take a task with one such as exact_match"
            raise EvalError("evals.shelves.lm_eval.in_task", task=self.name, fault=fault)
        return float(value)

    def _score_of_choice(self, number: int, answer: str) -> float:
        """Return lm-eval's metric of a document if the chosen text were far more likely than all others."""
        texts = self._texts(number)
        if answer not in texts:
            return 0.0
        chosen = texts.index(answer)
        results = [(0.0, True) if index == chosen else (_NOT_CHOSEN, False) for index in range(len(texts))]
        # acc_mutual_info adds a request without context for each choice. The other metrics ignore these requests.
        without_context = [(0.0, False)] * (len(self._requests[number]) - len(texts))
        metrics = self._task.process_results(self._doc(number), [*results, *without_context])
        return float(metrics["acc" if self.comparison == "greedy" else self.comparison])

    def _texts(self, number: int) -> list[str]:
        if self.comparison == "greedy":
            return [str(self._task.doc_to_target(self._doc(number)))]
        return [str(choice) for choice in self._task.doc_to_choice(self._doc(number))]

    def _doc(self, number: int) -> Any:
        return self._requests[number][0].doc


def _comparison(name: str, task: Any) -> Comparison | None:
    """Return the first of the task's metrics that decides whether a choice is correct; None if there are no choices.

    Raises EvalError if there is no such metric, or if the task scores log-likelihoods with its own function.
    """
    if task.OUTPUT_TYPE == GENERATE:
        return None
    from lm_eval.api.task import ConfigurableTask

    if callable(task.config.process_results) or type(task).process_results is not ConfigurableTask.process_results:
        raise EvalError("evals.shelves.lm_eval.own_scoring_of_likelihoods", task=name)
    known = _OF_CHOICES[task.OUTPUT_TYPE]
    given = list(task._metric_fn_list)
    found = [known[metric] for metric in given if metric in known]
    if not found:
        raise EvalError(
            "evals.shelves.lm_eval.no_metric_of_choices",
            task=name,
            output_type=task.OUTPUT_TYPE,
            metrics=", ".join(map(str, given)),
            known=" or ".join(known),
        )
    return found[0]


def stops_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    until = settings.get("until") or []
    return tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop)


def without_stop(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.partition(stop)[0]
    return text
