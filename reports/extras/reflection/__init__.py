"""Reflection words ("However", "Wait", ...): how often the policy writes them, and what the update does to their
tokens.

This is the question of CISPO (MiniMax-M1, 2506.13585, section 3.1): do rare tokens of reflection get clipped out of the
update? The first step's rollouts also tell whether the model wrote such words before any training.
"""

from reports.extras.reflection.summary import MOST_FILES, ArmWords, Reflection, read_reflection, reflection_table
from reports.extras.reflection.tally import DEFAULT_WORDS

__all__ = ["DEFAULT_WORDS", "MOST_FILES", "ArmWords", "Reflection", "read_reflection", "reflection_table"]
