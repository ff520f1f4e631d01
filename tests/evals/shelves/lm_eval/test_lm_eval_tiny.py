"""lm-eval's verdicts and ours on what the tiny model writes, drawn by the torch engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from evals.sampler import Draw, Drawn, SamplingParams
from evals.shelves.lm_eval.adapter import run_lm_eval
from evals.shelves.lm_eval.loading import OWN_TASKS
from evals.tasks import get_task
from evals.tasks.rows import file_rows
from tests.evals.scripted import write_rows
from tests.evals.shelves.lm_eval.parity import IDENTICAL, Comparison, skip_unless_it_runs, verdicts

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")

FILES = {"gsm8k": "gsm8k_test.jsonl", "aime24": "aime24.jsonl", "minerva_math500": "math500.jsonl"}
COMPARISONS = (*IDENTICAL, Comparison("minerva_math500", "none", "math_verify", "chain", "math"))
MAX_TOKENS = 40


class TinySampler:
    """The tiny model. Of a prompt that exceeds its context the end is kept, as lm-eval's hf backend does."""

    def draw(self, draws: Sequence[Draw], decoding: SamplingParams) -> list[Drawn]:
        import torch

        from harness.engines.base import SamplingParams
        from harness.engines.torch.engine import TorchEngine
        from harness.models.language_model import load_model
        from harness.random_keys import random_key

        model = load_model("builtin:tiny")
        engine = TorchEngine(model.model, model.pad_token_id, model.eos_token_ids, model.decode)
        room = model.model.config.max_position_embeddings - decoding.max_completion_tokens
        params = SamplingParams(
            decoding.max_completion_tokens, decoding.temperature, decoding.top_p, decoding.top_k, decoding.stop
        )
        keys = [[random_key(0, "eval", example=draw.example, sample=draw.sample)] for draw in draws]
        drawn = engine.generate([model.encode(draw.prompt)[-room:] for draw in draws], torch.tensor(keys), params)
        return [
            Drawn(model.decode(tokens[:length]), length, truncated)
            for tokens, length, truncated in zip(
                drawn.tokens.tolist(), drawn.lengths.tolist(), drawn.truncated.tolist(), strict=True
            )
        ]


def short(folder: Path, name: str, *lines: str) -> str:
    """Writes a task file: one of ours, greedy, with completions that fit the tiny model."""
    settings = {"until": ["Question:", "Problem:"], "do_sample": False, "max_gen_toks": MAX_TOKENS}
    text = [
        f"include: {OWN_TASKS / name}_local.yaml",
        f"task: {name}_short",
        f"generation_kwargs: {json.dumps(settings)}",
    ]
    (folder / f"{name}_short.yaml").write_text("\n".join([*text, *lines]), encoding="utf-8")
    return f"{name}_short"


def test_verdicts_on_sums_are_the_same(tmp_path, monkeypatch):
    sums = list(islice(get_task("arithmetic").split("test").load(), 24))
    rows = [{"problem": p.problem, "answer": p.answer, "solution": f"#### {p.answer}"} for p in sums]
    monkeypatch.setenv("BENCH_DATA", str(write_rows(tmp_path, {"gsm8k_test.jsonl": rows, "gsm8k_train.jsonl": rows})))
    task = short(tmp_path, "gsm8k", 'doc_to_text: "{{question}}"', "num_fewshot: 0")
    result = run_lm_eval([task], TinySampler(), include_path=tmp_path)
    for comparison in IDENTICAL[:2]:
        pairs = verdicts(comparison, task, result, rows)
        assert all(theirs == ours for theirs, ours in pairs)
    # The tiny model writes `#`, not `####`; so only the flexible filter finds its answers.
    by_default = verdicts(Comparison("gsm8k", "flexible-extract", "exact_match", "hash", "numeric"), task, result, rows)
    assert {(True, True), (False, False)} == set(by_default)


@pytest.mark.parametrize("comparison", COMPARISONS, ids=str)
def test_verdicts_on_real_problems_are_the_same(comparison, data_folder, tmp_path):
    skip_unless_it_runs(comparison.task)
    task = short(tmp_path, comparison.task)
    result = run_lm_eval([task], TinySampler(), limit=6, include_path=tmp_path)
    rows = [row for _, row in islice(file_rows(data_folder / FILES[comparison.task]), 6)]
    pairs = verdicts(comparison, task, result, rows)  # type: ignore[arg-type]
    assert len(pairs) == 6
    assert all(theirs == ours for theirs, ours in pairs)
    assert any(row["completions"][0] for row in result.rows)
