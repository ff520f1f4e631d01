"""Training: a batch of completions, or of pairs, becomes optimiser steps.

`policy_update` and `preference_update` are the two kinds of step. Under them: what is learned from (`batch`),
what models say about it (`sequences`, `token_scores`, `prefix_attention`), how weights move (`optimizer`), what they
are held near to (`reference`) and what was measured (`update_report`). Apart stand the cold start
with its demonstrations, the reward model and checkpoints.
"""
