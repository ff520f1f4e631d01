"""Results of lm-eval on one model, from a run of its own with our sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from evals.prompts import Message
from evals.sampler import SamplingParams


class LmEvalRow(TypedDict):
    """One document under one filter, with its K samples (`repeats` of the task file)."""

    task: str
    doc_id: int
    doc_hash: str
    filter: str
    prompt: str | list[Message]
    reference: str
    """lm-eval's target, as text."""
    completions: list[str]
    """[K]: as lm-eval saw them, without the stop string."""
    n_tokens: list[int]
    """[K]: as sampled."""
    truncated: list[bool]
    """[K]: as sampled."""
    filtered: Any
    """The output of the filter."""
    metrics: dict[str, float]
    """lm-eval's metrics that are a number for each document."""


@dataclass(frozen=True)
class LmEvalMetric:
    """The score of a task."""

    task: str
    name: str
    filter: str
    value: float
    stderr: float | None
    """lm-eval's standard error over documents; None if it has none."""


@dataclass(frozen=True)
class LmEvalTask:
    """The settings with which a task ran."""

    name: str
    version: str
    n_docs: int
    repeats: int
    decodings: tuple[SamplingParams, ...]
    max_gen_toks_assumed: bool
    """The task sets no limit of its own, so the default applied."""


@dataclass(frozen=True)
class LmEvalResult:
    """The results of one model. A group or a tag is replaced by its tasks."""

    tasks: tuple[LmEvalTask, ...]
    metrics: tuple[LmEvalMetric, ...]
    rows: tuple[LmEvalRow, ...]
