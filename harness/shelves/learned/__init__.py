"""Rewards learned from pairs of completions: the reward model with its best-of-n, and the pairwise judge."""
