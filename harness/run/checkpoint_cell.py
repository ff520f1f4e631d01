"""A cell that evaluates a checkpoint: a model as it is, without any training.

The same samples are drawn once in a home, whichever sweep, arm or `bench eval` asked first: another grader, more
samples or another name take over what is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from evals.choices import Continuation, Likelihood
from evals.evaluate import SampleRow
from evals.prompts import Thinking
from evals.sampler import Draw, Drawn, SamplingParams
from evals.tasks.base import Problem
from evals.tasks.environment import Environment
from harness.config.hashing import conditions_of_model, digest
from harness.config.run_spec import RunSpec, recorded_spec
from harness.engines.base import make_engine
from harness.models.language_model import LanguageModel
from harness.processes import peak_memory_mb, reset_peak_memory
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE, EVALUATIONS, STARTS_FILE, is_cell_directory_name
from harness.records.files import append_jsonl, read_json, read_object
from harness.records.registration import registration_found
from harness.run.evaluation import EarlierEvaluations, begin_own_evaluation
from harness.run.provenance import append_start
from harness.sampling.code_tester import code_account
from harness.sampling.conditions import Conditions
from harness.sampling.sampler import BudgetedSampler, ConversingSampler, EngineSampler
from harness.sampling.store import EVALS, SAMPLES_FILE, SampleStore, store_name

Row = dict[str, Any]
_ABOUT = {"step": 0, "final": True}


@dataclass(frozen=True)
class CheckpointCell:
    """home: where samples that are drawn already are looked for. load: gives the model, when the first sample is to be
    drawn."""

    cell: CellRecord
    spec: RunSpec
    home: Path
    load: Callable[[], LanguageModel]

    def run(self, evaluate: Callable[[CheckpointCell, Callable[[Conditions], list[SampleRow]]], None]) -> None:
        """Evaluate, and record how long it took and what came out; the cell is not done before the caller says so.

        evaluate: with a sampler, and with what was drawn elsewhere under the conditions of a task.
        """
        device, started_s = torch.device(self.spec.train.device), time.perf_counter()
        reset_peak_memory(device)
        if self.cell.evaluation is None:
            begin_own_evaluation(self.cell, self.spec)
        evaluate(self, self._drawn_elsewhere)
        if "sampler" not in vars(self):  # every sample was there
            self._append_start({})
        taken_s = time.perf_counter() - started_s
        took = {"step": 0, "eval_s": taken_s, "elapsed_s": taken_s, "peak_memory_mb": peak_memory_mb(device)}
        append_jsonl(self.cell.evaluation_folder / "timing.jsonl", [took])

    def outcome(self) -> Row:
        """Fields of the status of a cell that is done. `digest` is that of its answers and their verdicts."""
        rows = SampleStore(self.cell.evaluation_folder / SAMPLES_FILE, _ABOUT).rows()
        answers = [[row["task"], row["problem_id"], row["sample"], row["text"], row["correct"]] for row in rows]
        return {"step": 0, "steps": 0, "generated_tokens": 0, "flags": [], "digest": digest(answers)}

    def draw(self, draws: Sequence[Draw], params: SamplingParams) -> list[Drawn]:
        """As `evals.sampler.Sampler.draw`."""
        return self.sampler.draw(draws, params)

    def score(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """As `evals.choices.Scorer.score`."""
        return self.sampler.score(continuations)

    def within(self, budget_tokens: int, thinking: Thinking) -> BudgetedSampler:
        """As `harness.sampling.scoring.Policy.within`."""
        return self.sampler.within(budget_tokens, thinking)

    def in_turns(self, environment: Environment, problems: Mapping[str, Problem]) -> ConversingSampler:
        """As `harness.sampling.scoring.Policy.in_turns`."""
        return self.sampler.in_turns(environment, problems)

    @cached_property
    def sampler(self) -> EngineSampler:
        model = self.load()
        self._append_start({"model": model.account()})
        return EngineSampler(model, make_engine(self.spec.rollout, model), self.spec.seed)

    def _append_start(self, account: Row) -> None:
        registered = registration_found(self.cell.path.parents[1])
        append_start(
            self.cell.evaluation_folder / STARTS_FILE, registered | account | code_account(self.spec.runs_code)
        )

    def _drawn_elsewhere(self, conditions: Conditions) -> list[SampleRow]:
        """Each sample once."""
        task = conditions.task
        drawn = conditions.as_json(task.split(conditions.split).load())
        stores = [SampleStore(path / SAMPLES_FILE, _ABOUT) for path in self._evaluations_alike(task.name, drawn)]
        stores += [SampleStore(path / SAMPLES_FILE) for path in self._stores(task.name, drawn)]
        rows = [row for store in stores for row in store.rows() if row["task"] == task.name]
        rows += self._drawn_by_its_cell(conditions)
        return [*{(row["problem_id"], row["sample"]): row for row in rows}.values()]

    def _evaluations_alike(self, task: str, drawn: Row) -> Iterator[Path]:
        """Folders of other checkpoint cells, with samples of the same model and noise under the same conditions."""
        for pattern in ("*/cells/*", f"*/cells/*/{EVALUATIONS}/*"):
            for path in sorted(self.home.glob(f"{pattern}/{EVALUATION_FILE}")):
                if path.parent == self.cell.evaluation_folder:
                    continue
                described = read_object(path)
                alike = described.get("model") == self._model
                if alike and described["tasks"].get(task, {}).get("drawn") == drawn:
                    yield path.parent

    def _stores(self, task: str, drawn: Row) -> list[Path]:
        return sorted((self.home / EVALS).glob(f"*/{store_name(task, self._model | drawn)}"))

    def _drawn_by_its_cell(self, conditions: Conditions) -> list[SampleRow]:
        """What the cell that trained the checkpoint drew, if that was with the same noise."""
        folder = self.spec.checkpoint_folder
        if folder is None or not is_cell_directory_name(folder.parents[1].name):
            return []
        trained = CellRecord.at(folder.parents[1])
        spec = recorded_spec(trained).model_copy(update={"checkpoint": self.spec.checkpoint})
        if conditions_of_model(spec) != self._model:
            return []
        return EarlierEvaluations(trained).samples(int(read_json(folder / "checkpoint.json")["step"]), conditions)

    @cached_property
    def _model(self) -> Row:
        return conditions_of_model(self.spec)
