"""Reflection words ("However", "Wait", ...): how often the policy writes them, whether that helps, and what the update
does to their tokens, against all others. The question of CISPO (MiniMax-M1, 2506.13585, section 3.1), and whether the
model wrote them before any training."""

from reports.reflection.curves import Quantity, stretches_of, word_curves
from reports.reflection.summary import ArmWords, Reflection, read_reflection
from reports.reflection.words import DEFAULT_WORDS

__all__ = ["DEFAULT_WORDS", "ArmWords", "Quantity", "Reflection", "read_reflection", "stretches_of", "word_curves"]
