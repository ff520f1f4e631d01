"""What `bench import` is asked: sources, how to name the runs in them, and the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

QUESTION = "Do these arms, made elsewhere, differ?"


@dataclass(frozen=True)
class Request:
    """name: that of the records. sources: files, folders, addresses and patterns. command: for captions. format: None
    to recognise it. runs: the pattern of runs' names. arm, seed: of runs that do not say theirs. configs: the pattern
    of files of settings. baseline: None for the first arm; metric: None for the first accuracy. ablate, co_changes: as
    in a sweep file."""

    name: str
    sources: Sequence[str]
    command: str = ""
    format: str | None = None
    runs: str | None = None
    arm: str | None = None
    seed: int | None = None
    configs: str | None = None
    question: str = QUESTION
    baseline: str | None = None
    metric: str | None = None
    margin_pp: float = 1.0
    alpha: float = 0.05
    ablate: Sequence[str] = ()
    co_changes: Mapping[str, str] = field(default_factory=dict)
