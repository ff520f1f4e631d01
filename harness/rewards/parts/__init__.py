"""The shipped reward parts: all named subclasses of `RewardPart` in the modules of this folder."""
