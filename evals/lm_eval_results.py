"""The results of lm-eval on one model, from a run of lm-eval with bench's sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from evals.prompts import Message
from evals.sampler import SamplingParams


class LmEvalRow(TypedDict):
    """One document under one filter, with its K samples (`repeats` in the task file)."""

    task: str
    doc_id: int
    doc_hash: str
    filter: str
    prompt: str | list[Message]
    reference: str
    """lm-eval's target, converted to text."""
    completions: list[str]
    """[K] as lm-eval saw them, without the stop string."""
    n_tokens: list[int]
    """[K] as sampled."""
    truncated: list[bool]
    """[K] as sampled."""
    filtered: Any
    """The output of the filter."""
    metrics: dict[str, float]
    """The metrics of lm-eval that are numbers for individual documents."""


@dataclass(frozen=True)
class LmEvalMetric:
    """The value of one metric of a task."""

    task: str
    name: str
    filter: str
    value: float
    stderr: float | None
    """lm-eval's standard error over documents, or None if it computes none."""


@dataclass(frozen=True)
class LmEvalTask:
    """The settings that a task ran with."""

    name: str
    version: str
    n_docs: int
    repeats: int
    decodings: tuple[SamplingParams, ...]
    max_gen_toks_assumed: bool
    """True if the task file sets no limit, so that the default applied."""


@dataclass(frozen=True)
class LmEvalResult:
    """The results of one model. Groups and tags are expanded into their tasks."""

    tasks: tuple[LmEvalTask, ...]
    metrics: tuple[LmEvalMetric, ...]
    rows: tuple[LmEvalRow, ...]
