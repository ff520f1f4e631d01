"""Saves a model in the shape of Qwen2.5-0.5B with random weights, for measurements of speed where no model is at hand.

python benchmarks/half_billion.py /tmp/half_billion
python benchmarks/grpo_step.py --model /tmp/half_billion --untrained --device cuda --max-completion-tokens 256
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.extras.selftest.whole_cells import save_half_billion

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="must not exist yet; 1 GB")
    given = parser.parse_args()
    if given.folder.exists():
        parser.error(f"{given.folder} exists: remove it, or name another folder")
    save_half_billion(given.folder)
