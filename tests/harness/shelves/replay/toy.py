"""A stored step by hand: two prompts, two completions each; the second prompt's are both right."""

from __future__ import annotations

import math

import torch

from harness.shelves.replay.stored import StoredStep
from harness.training.batch import Batch
from harness.training.sequences import Sequences

LENGTHS = [1, 3, 2, 2]
REWARDS = [1.0, 0.0, 1.0, 1.0]
LIMIT = 8
SECOND_RATIOS = [[3.0], [0.5, 1.0, 1.1], [1.0, 1.0], [1.0, 1.0]]
"""In the second epoch; in the first all are 1."""


def stored(epochs: int = 2) -> StoredStep:
    lengths = torch.tensor(LENGTHS)
    sequences = Sequences([[]] * 4, torch.zeros(4, 3, dtype=torch.long), lengths)
    log_ratios = torch.zeros(2, 4, 3)
    for row, ratios in enumerate(SECOND_RATIOS):
        log_ratios[1, row, : len(ratios)] = torch.tensor([math.log(ratio) for ratio in ratios])
    old_logps = torch.where(sequences.mask, -torch.arange(1.0, 4.0), 0)
    return StoredStep(
        step=1,
        rollout=Batch(
            sequences=sequences,
            sampler_logps=old_logps,
            rewards=torch.tensor(REWARDS),
            groups=torch.tensor([0, 0, 1, 1]),
            max_completion_tokens=LIMIT,
            truncated=torch.tensor([False, True, False, False]),
            correct=torch.tensor(REWARDS) == 1,
        ),
        old_logps=old_logps,
        log_ratios=log_ratios[:epochs],
        # The second prompt has no advantage under the cell's own objective, and was not scored again.
        scored=torch.tensor([[True, True, False, False]]).expand(2, 4)[:epochs],
        recorded=True,
    )
