"""lm-eval's multiple choice as held-out tasks of a training sweep. `make test-lm-eval` runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.choices import Continuation, Likelihood
from evals.sampler import Draw, SamplingParams
from evals.tasks import get_task
from harness.engines.base import make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.records import CellRecord
from harness.records.cell import EVALUATIONS
from harness.run.evaluator import Evaluator
from harness.sampling.conditions import Conditions
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SampleStore
from tests.evals.scripted import write_rows
from tests.harness.run import bench
from tests.harness.run.small import small_spec

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")

N_PROBLEMS = 20
FILE = {"dataset_path": "json", "test_split": "test", "num_fewshot": 0, "doc_to_text": "{{problem}}"}
# The tiny model writes no space before an answer; the second asks for one that the context ends with.
TASKS: dict[str, dict[str, Any]] = {
    "plain": {"metrics": ["acc", "acc_norm"], "target_delimiter": ""},
    "by_length": {"metrics": ["acc_norm", "acc"], "doc_to_text": "{{problem}} "},
    "by_bytes": {"metrics": ["exact_match", "acc_bytes"], "num_fewshot": 2},
    "informed": {"metrics": ["acc_mutual_info"], "target_delimiter": ""},
    "in_contexts": {
        "metrics": ["acc"],
        "doc_to_text": "{{choices.index(answer)}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{problem}}",
    },
    "greedy": {
        "metrics": ["perplexity", "acc"],
        "output_type": "loglikelihood",
        "doc_to_target": "{{often}}",
        "target_delimiter": "",
    },
}


def rows() -> list[dict[str, Any]]:
    """Problems of the tiny model's own kind. Some have a wrong choice that is longer, which wins where likelihoods are
    divided by lengths. often: for every other problem the beginning of what the model would write."""
    problems = get_task("arithmetic").split("test").load()[:N_PROBLEMS]
    draws = [Draw(one.problem, one.id, 0) for one in problems]
    greedy = policy(load_model("builtin:tiny")).draw(draws, SamplingParams(2, temperature=0.0))
    found = []
    for number, one in enumerate(problems):
        longer = [f"1{one.answer}00"] if number % 3 else []
        choices = [f"{number % 10}", *longer, one.answer, f"{int(one.answer) + 3}"]
        found.append(
            {
                "problem": one.problem,
                "answer": one.answer,
                "choices": choices,
                "often": greedy[number].text if number % 2 else "7",
            }
        )
    return found


def task_file(folder: Path, kind: str, **settings: Any) -> str:
    """What `eval.tasks` names."""
    folder = write_rows(folder, {f"{kind}.jsonl": rows()})
    said: dict[str, Any] = {**FILE, "output_type": "multiple_choice", "doc_to_target": "{{choices.index(answer)}}"}
    said |= {"task": kind, "dataset_kwargs": {"data_files": {"test": str(folder / f"{kind}.jsonl")}}} | TASKS[kind]
    if said["output_type"] == "multiple_choice":
        said.setdefault("doc_to_choice", "{{choices}}")
    said["metric_list"] = [{"metric": metric} for metric in said.pop("metrics")]
    path = folder / f"{kind}.yaml"
    path.write_text(json.dumps(said | settings))
    return f"lm_eval:{path}"


def policy(model: LanguageModel) -> EngineSampler:
    return EngineSampler(model, make_engine(small_spec().rollout, model), 0)


@pytest.mark.parametrize("kind", TASKS)
def test_verdicts_and_log_likelihoods_are_those_of_lm_evals_own_backend(tmp_path: Path, kind: str) -> None:
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model, name = load_model("builtin:tiny"), task_file(tmp_path, kind)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    theirs = lm_eval.simple_evaluate(
        HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=4), tasks=[kind], task_manager=manager
    )["samples"][kind]
    theirs = sorted(theirs, key=lambda sample: sample["doc_id"])
    problems = get_task(name).split("test").load()
    metric = next(metric for metric in TASKS[kind]["metrics"] if metric.startswith("acc"))
    spec = small_spec({"eval.tasks": [name], "eval.problems": None})
    ((scores, samples),) = Evaluator(spec.eval, 0, lambda: policy(model)).run(4, SampleStore(tmp_path / "evals.jsonl"))
    assert [row["correct"] for row in samples] == [bool(sample[metric]) for sample in theirs]
    assert scores["n_samples"] == 1
    assert 0 < (scores["metrics"]["pass@1"] or 0) < 1, "verdicts of both kinds, or agreement says little"
    for problem, sample in zip(problems, theirs, strict=True):
        assert problem.choices is not None
        found = policy(model).score(problem.choices.continuations)
        assert [one.logp for one in found] == pytest.approx([float(r[0][0]) for r in sample["resps"]], abs=1e-4)


def test_the_record_of_a_sample_is_the_choice_which_is_graded_again_from_it(tmp_path: Path) -> None:
    task = get_task(task_file(tmp_path, "plain"))
    for problem, row in zip(task.split("test").load(), rows(), strict=True):
        assert problem.own_comparison is not None
        assert problem.answer == row["answer"]
        right = [text for text in (*row["choices"], "nothing of it") if problem.own_comparison(text) == "match"]
        assert right == [row["answer"]]


def test_neither_more_samples_nor_another_decoding_scores_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, model = task_file(tmp_path, "plain"), load_model("builtin:tiny")
    specs = [small_spec({"eval.tasks": [name], **more}) for more in ({}, {"eval.samples": 8, "eval.temperature": 0.5})]
    task, store = get_task(name), SampleStore(tmp_path / "evals.jsonl")
    one, other = (Conditions.of_evaluation(spec.eval, task, 0).as_json(task.split("test").load()) for spec in specs)
    assert one == other

    def never(sampler: EngineSampler, continuations: list[Continuation]) -> list[Likelihood]:
        raise AssertionError("scored again")

    ((_, first),) = Evaluator(specs[0].eval, 0, lambda: policy(model)).run(4, store)
    monkeypatch.setattr(EngineSampler, "score", never)
    ((_, second),) = Evaluator(specs[1].eval, 0, lambda: policy(model)).run(8, store)
    assert first == second


@pytest.mark.slow
def test_a_sweep_compares_arms_on_it_and_is_topped_up(tmp_path: Path) -> None:
    sweep = bench.write_sweep(tmp_path)
    document = yaml.safe_load(sweep.read_text())
    document["base"] |= {"eval.tasks": ["arithmetic", task_file(tmp_path, "plain")], "train.steps": 4, "eval.every": 2}
    document["base"]["eval.problems"] = N_PROBLEMS
    document["compare"] = {"metric": "eval.final.lm_eval:plain.pass@1"}
    sweep.write_text(yaml.safe_dump(document, sort_keys=False))
    for more in ((), ("--eval-samples", "8")):
        code, said = bench.run_here(sweep, tmp_path / "runs", *more)
        assert code == 0, said
        assert "a problem has one sample" in " ".join(said.split())
        samples = int(more[-1]) if more else 4
        for cell in (under_newest(cell) for cell in bench.cells(tmp_path / "runs").values()):
            table = cell.read_evals()
            assert table is not None
            found = [row for row in table.to_pylist() if row["final"]]
            mine = [row for row in found if row["task"] == "lm_eval:plain"]
            assert [row["text"] in one["choices"] for row, one in zip(mine, rows(), strict=True)] == [True] * N_PROBLEMS
            assert len(found) - len(mine) == samples * N_PROBLEMS
            scores = [row for row in cell.read_scores() if row["task"] == "lm_eval:plain"]
            assert [(row["step"], row["n_samples"]) for row in scores] == [(2, 1), (4, 1)]


def under_newest(cell: CellRecord) -> CellRecord:
    """The cell under the evaluation that came last."""
    folders = sorted((cell.path / EVALUATIONS).glob("*"))
    return replace(cell, evaluation=folders[-1].name) if folders else cell


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"output_type": "loglikelihood_rolling"}, "does not grade a document as right or wrong"),
        ({"metric_list": [{"metric": "brier_score"}]}, "but none of them says whether a choice is right"),
    ],
)
def test_what_is_not_right_or_wrong_is_refused_when_planning(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(RefusedError, match=says):
        small_spec({"eval.tasks": [task_file(tmp_path, "plain", **settings)]})
