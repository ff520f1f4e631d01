"""What lm-eval measured on one model, in a run of its own on a sampler of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from evals.prompts import Message
from evals.sampler import SamplingParams


class LmEvalRow(TypedDict):
    """One document under one filter, with its K samples (`repeats` of the task file).

    completions [K]: as lm-eval saw them, without the stop string. n_tokens, truncated [K]: as drawn.
    reference: lm-eval's target, as text. filtered: what the filter made of the completions. metrics: lm-eval's, where
        they are a number for each document.
    """

    task: str
    doc_id: int
    doc_hash: str
    filter: str
    prompt: str | list[Message]
    reference: str
    completions: list[str]
    n_tokens: list[int]
    truncated: list[bool]
    filtered: Any
    metrics: dict[str, float]


@dataclass(frozen=True)
class LmEvalMetric:
    """A task's score. stderr: lm-eval's, over documents; None where it has none."""

    task: str
    name: str
    filter: str
    value: float
    stderr: float | None


@dataclass(frozen=True)
class LmEvalTask:
    """How a task was run. max_gen_toks_assumed: the task sets no limit of its own, so our default was taken."""

    name: str
    version: str
    n_docs: int
    repeats: int
    decodings: tuple[SamplingParams, ...]
    max_gen_toks_assumed: bool


@dataclass(frozen=True)
class LmEvalResult:
    """The results of one model. A group or a tag stands here as its tasks."""

    tasks: tuple[LmEvalTask, ...]
    metrics: tuple[LmEvalMetric, ...]
    rows: tuple[LmEvalRow, ...]
