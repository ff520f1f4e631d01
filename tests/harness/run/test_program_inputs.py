"""What a program is handed to learn from is what bench would learn from."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from harness.errors import RefusedError
from harness.models.language_model import load_model
from harness.run.encoded_pairs import load_pairs
from harness.run.program_inputs import pairs_by_step, prompts_by_step
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import make_stage
from tests.refusals import refuses

pytestmark = pytest.mark.slow


def test_pairs_of_a_set_come_in_the_order_of_the_seed(tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    given = [{"prompt": f"1+{n}=", "chosen": f"{1 + n}#{1 + n}", "rejected": "0#0"} for n in range(1, 6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in given))
    model = load_model("builtin:tiny")
    pairs = {"type": "dataset", "data": str(data), "pairs_per_step": 2, "max_tokens": 64}
    spec = small_spec({"algorithm": "dpo", "pairs": pairs}, seed=5)
    make_stage("pairs", tmp_path / "made", spec, model)
    encoded = load_pairs(tmp_path / "made")
    steps = list(pairs_by_step(spec, {"pairs": tmp_path / "made"}, model))
    assert [rows[0]["step"] for rows in steps] == [1, 2, 3, 4] and {len(rows) for rows in steps} == {2}
    for rows in steps:
        wanted = [given[place] for place in encoded.of_step(rows[0]["step"], 2, 5)]
        assert [model.decode(row["prompt"]) for row in rows] == [row["prompt"] for row in wanted]
        assert [row["chosen"] for row in rows] == [model.encode_completion(row["chosen"]) for row in wanted]
        assert [row["rejected"] for row in rows] == [model.encode_completion(row["rejected"]) for row in wanted]
        assert {row["generated_tokens"] for row in rows} == {0}
    assert prompts_by_step(spec, {})(1) == [], "a set of pairs has no prompts besides"


def test_a_step_without_pairs_is_refused() -> None:
    settings = {"algorithm": "dpo", "rollout.sampler": "initial", "rollout.max_completion_tokens": 1}
    with refuses(RefusedError, "run.step_without_pair", step=1):
        list(islice(pairs_by_step(small_spec(settings), {}, load_model("builtin:tiny")), 1))
