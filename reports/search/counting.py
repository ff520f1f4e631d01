"""Numbers of things in sentences."""

from __future__ import annotations


def count(n: int, noun: str) -> str:
    """1 trial, 2 trials."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
