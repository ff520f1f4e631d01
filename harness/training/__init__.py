"""Training: a batch of completions, or of pairs, becomes optimiser steps.

`policy_update` and `preference_update` are the two kinds of step. Under them: what is learned from (`batch`),
what models say about it (`sequences`, `token_scores`, `prefix_attention`), how weights move (`optimizer`), what they
are held near to (`reference`) and what was measured (`update_report`). The cold start with its demonstrations and the
reward model share a loop of their own (`supervised`). Apart stand checkpoints. `tensors` moves states between devices.
"""
