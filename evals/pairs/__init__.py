"""Pairs of a chosen and a rejected completion of one prompt, from files and from the hub."""

from evals.pairs.pair import PreferencePair
from evals.pairs.source import PairSource, parse_pair_source

__all__ = ["PairSource", "PreferencePair", "parse_pair_source"]
