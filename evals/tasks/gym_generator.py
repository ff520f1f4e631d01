"""The process in which reasoning-gym makes its problems. It is started by its path with a fixed PYTHONHASHSEED: some
data sets go through sets of strings or draw from Python's global generator, so that in another process the same seed
would give other problems.

A pickled request on stdin: task, its configuration, how many different problems, how many rounds of as many draws. On
stdout the pickled problems as the package made them, each with its number in the stream; fewer if there are no more.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import sys
from typing import Any


def main() -> None:
    # Whatever a data set prints must not end up in the reply.
    reply = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    import numpy as np
    import reasoning_gym  # noqa: F401  # fills the registry
    from reasoning_gym.factory import DATASETS

    task, config, wanted, rounds = pickle.load(sys.stdin.buffer)
    random.seed(config.seed)
    np.random.seed(config.seed)
    made: dict[str, tuple[int, dict[str, Any]]] = {}
    for start in range(0, rounds * wanted, wanted):
        # A data set takes seed + number for its n-th problem, and some know no numbers beyond their size.
        data_set = DATASETS[task][0](config=dataclasses.replace(config, seed=config.seed + start, size=wanted))
        for number in range(wanted):
            entry = data_set[number]
            made.setdefault(entry["question"], (start + number, entry))
            if len(made) == wanted:
                break
        if len(made) == wanted:
            break
    pickle.dump(list(made.values()), reply)
    reply.flush()


if __name__ == "__main__":
    main()
