"""Training turns a batch of completions, or of pairs, into optimiser steps.

`policy_update` and `preference_update` are the two kinds of step. They build on six modules: `batch` holds the training
data, `sequences`, `token_scores` and `prefix_attention` compute what models say about it, `optimizer` moves the
weights, and `reference` holds the frozen models. `update_report` collects the measurements of a step.

The cold start, with its demonstrations, and the reward model share one loop (`supervised`). `checkpoint` stands apart,
and `tensors` moves states between devices.
"""
