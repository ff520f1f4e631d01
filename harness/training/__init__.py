"""Training turns a batch of completions, or of pairs, into optimiser steps.

`policy_update` and `preference_update` are the two kinds of step. They use six modules: `batch` holds the training
data. `sequences`, `token_scores` and `prefix_attention` compute log-probs and other scores. `optimizer` updates the
weights, and `reference` holds the frozen models. `update_report` collects the measurements of a step.

The cold start on demonstrations and the reward model share a training loop (`supervised`). `checkpoint` saves and loads
cells, and `tensors` moves states between devices.
"""
