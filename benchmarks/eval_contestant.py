"""One way of evaluating lm-eval's GSM8K without examples, in a process of its own, taking turns: an engine of ours, or
lm-eval's own hf backend.

python benchmarks/eval_contestant.py ENGINE MODEL DEVICE PROBLEMS MAX_GEN_TOKS BATCH_SIZE

ENGINE: torch, vllm or hf. BATCH_SIZE: of the hf backend. Both run the same task file, filters and metric.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairs import Row, Turns

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel

TASK = "gsm8k_zero_shot"
TASKS = Path(__file__).parent / "lm_eval_tasks"


def main(engine: str, model: str, device: str, problems: int, max_gen_toks: int, batch_size: int) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    turns = Turns()

    from harness.models.language_model import load_model

    language_model = load_model(model, device)
    if engine == "hf":
        evaluate = by_hf(language_model, problems, max_gen_toks, batch_size)
    else:
        evaluate = by_sampler(engine, language_model, problems, max_gen_toks)
    # The first is the warm-up: it is over before the first turn.
    for _ in itertools.count():
        started_s = time.perf_counter()
        row = evaluate()
        turns.report({"seconds": time.perf_counter() - started_s, **row})


def by_sampler(engine: str, language_model: LanguageModel, problems: int, max_gen_toks: int) -> Callable[[], Row]:
    """Through our adapter of lm-eval."""
    from evals.shelves.lm_eval.adapter import run_lm_eval
    from harness.config.rollout import RolloutSpec
    from harness.engines.base import make_engine
    from harness.sampling.sampler import EngineSampler

    rollout = RolloutSpec.model_validate({"engine": engine, "max_completion_tokens": max_gen_toks})
    sampler = EngineSampler(language_model, make_engine(rollout, language_model), seed=0)

    def evaluate() -> Row:
        result = run_lm_eval([TASK], sampler, limit=problems, include_path=TASKS, max_gen_toks=max_gen_toks)
        (score,) = [one.value for one in result.metrics if one.filter == "flexible-extract"]
        texts = [row["completions"][0] for row in result.rows if row["filter"] == "flexible-extract"]
        return account(language_model, texts, score)

    return evaluate


def by_hf(language_model: LanguageModel, problems: int, max_gen_toks: int, batch_size: int) -> Callable[[], Row]:
    """By lm-eval's hf backend over the same weights."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from evals.shelves.lm_eval.loading import OWN_TASKS

    backend = HFLM(
        pretrained=language_model.model,
        tokenizer=language_model.tokenizer,
        batch_size=batch_size,
        device=str(language_model.model.device),
    )
    manager = TaskManager(include_path=[str(OWN_TASKS), str(TASKS)], include_defaults=False)

    def evaluate() -> Row:
        outcome: Any = lm_eval.simple_evaluate(
            model=backend,
            tasks=[TASK],
            task_manager=manager,
            limit=problems,
            bootstrap_iters=0,
            gen_kwargs={"max_gen_toks": max_gen_toks},
        )
        samples = [one for one in outcome["samples"][TASK] if one["filter"] == "flexible-extract"]
        score = outcome["results"][TASK]["exact_match,flexible-extract"]
        return account(language_model, [one["resps"][0][0] for one in samples], score)

    return evaluate


def account(language_model: LanguageModel, texts: Sequence[str], score: float) -> Row:
    """What was done, to see that it was the same work."""
    tokens = sum(len(language_model.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    return {"completions": len(texts), "tokens": tokens, "score": score, "texts": list(texts)}


if __name__ == "__main__":
    engine, model, device = sys.argv[1:4]
    main(engine, model, device, *map(int, sys.argv[4:]))
