"""Names of metrics of a final evaluation: `eval.final.<task>.<name>`, and which of them arms are compared by."""

from __future__ import annotations

from collections.abc import Iterable

METRIC_PREFIX = "eval.final."

_OF_K_SAMPLES = ("pass@", "pass^", "maj@")
_OF_ALL_SAMPLES = ("avg@n", "cons@n")


def is_accuracy(name: str) -> bool:
    """Whether it is a fraction in [0, 1] of which more is better, as arms are compared by; of many others less is."""
    return name in _OF_ALL_SAMPLES or name.startswith(_OF_K_SAMPLES)


def accuracy_names(ks: Iterable[int]) -> list[str]:
    """Those that an evaluation with these k gives."""
    return [*(f"{name}{k}" for name in _OF_K_SAMPLES for k in ks), *_OF_ALL_SAMPLES]
