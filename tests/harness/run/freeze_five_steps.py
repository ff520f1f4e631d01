"""Write tests/golden/five_steps.json anew: `python -m tests.harness.run.freeze_five_steps`."""

from __future__ import annotations

from harness.records.files import write_json
from tests.harness.run.five_steps import FROZEN, five_steps

if __name__ == "__main__":
    write_json(FROZEN, five_steps())
    print(f"wrote {FROZEN}")
