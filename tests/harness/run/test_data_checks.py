"""Where the rows of a task come from is written down when they are first used, and held to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import evals.tasks.rows
from evals.tasks import get_task
from evals.tasks.base import Task
from evals.tasks.rows import HubDataset, LocalFile, TaskRows
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.models.start import StartingPoint
from harness.models.tiny import tiny_model, tiny_tokenizer
from harness.run.data_checks import record_source, require_gold_texts
from tests.harness.run.small import small_spec
from tests.refusals import refuses


def task(source: TaskRows) -> Task:
    return Task("mine", "plain", "exact", "chain", 1.0, {"test": source})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The rows that stand-in for a data set on the hub has."""
    rows = [{"problem": "1+1", "answer": "2"}]
    monkeypatch.setattr(
        evals.tasks.rows, "hub_rows", lambda name, *given: [(f"{name} row {i}", row) for i, row in enumerate(rows)]
    )
    return rows


def test_a_hub_data_set_is_recorded_on_first_use_and_may_not_change(tmp_path: Path, hub: list[dict[str, str]]) -> None:
    mine = task(TaskRows("mine", hub=HubDataset(id="somebody/sums", split="test", revision="v1")))
    found = record_source(tmp_path / "cache", mine, "test")
    assert found is not None
    assert (found["origin"], found["rows"], found["matches_pin"]) == ("hub:somebody/sums@v1/default/test", 1, None)
    (kept,) = (tmp_path / "cache").glob("rows-*.json")
    assert json.loads(kept.read_text()) == [found]
    assert record_source(tmp_path / "cache", mine, "test") == found
    hub[0]["answer"] = "3"
    with refuses(RefusedError, "run.rows_changed") as caught:
        record_source(tmp_path / "cache", mine, "test")
    assert str(kept) in str(caught.value) and str(found["digest"]) in str(caught.value)


def test_two_sources_of_one_split_are_recorded_apart(tmp_path: Path, hub: list[dict[str, str]]) -> None:
    """The digest is the file's; the hub words the problems otherwise, and must go on doing so."""
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"problem": "one and one", "answer": "2"}) + "\n")
    digest = TaskRows("mine", LocalFile("rows.jsonl", tmp_path)).load().digest
    both = TaskRows(
        "mine", LocalFile("rows.jsonl", tmp_path), HubDataset(id="somebody/sums", split="test"), digest=digest
    )
    cache = tmp_path / "cache"
    first = record_source(cache, task(both), "test")
    file.unlink()
    second = record_source(cache, task(both), "test")
    assert first is not None and second is not None
    assert (first["matches_pin"], second["matches_pin"]) == (True, False)
    (kept,) = cache.glob("rows-*.json")
    assert json.loads(kept.read_text()) == [first, second]
    hub[0]["answer"] = "3"
    with refuses(RefusedError, "run.rows_changed"):
        record_source(cache, task(both), "test")


def test_a_file_of_ones_own_may_change_and_generated_problems_come_from_nowhere(tmp_path: Path) -> None:
    digests = []
    for answer in ("2", "3"):
        (tmp_path / "rows.jsonl").write_text(json.dumps({"problem": "1+1", "answer": answer}) + "\n")
        found = record_source(tmp_path / "cache", task(TaskRows("mine", LocalFile("rows.jsonl", tmp_path))), "test")
        assert found is not None
        digests.append(found["digest"])
    assert digests[0] != digests[1]
    assert record_source(tmp_path / "other", get_task("arithmetic"), "test") is None
    assert not (tmp_path / "other").exists()


# Gold texts.

ROWS = [{"problem": "1+2=", "answer": "3", "solution": "3#3"}, {"problem": "2+2=", "answer": "4", "solution": "4#4"}]


def gold_task(folder: Path, rows: list[dict[str, str]]) -> dict[str, object]:
    """Settings that train on these rows, with a part for each model that can be asked."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.yaml").write_text(
        "name: mine\ntemplate: plain\ngrader: exact\nextract: hash\nsplits: {train: {file: rows.jsonl}}\n"
    )
    return {
        "task.train": str(folder / "mine.yaml"),
        "eval.tasks": ["arithmetic"],
        "rollout.prompts_per_step": 2,
        "reward.parts": {"vr_cli": 1.0, "jepo": 1.0},
    }


@pytest.fixture(scope="module")
def policy() -> LanguageModel:
    return load_model("builtin:tiny")


@pytest.mark.parametrize(
    ("row", "settings", "code", "fields"),
    [
        ({}, {"rollout.max_completion_tokens": 125}, "exceeds_context", {"needed_tokens": 132, "context_tokens": 128}),
        ({"answer": "four"}, {}, "not_in_vocabulary", {"text": "'four'", "problem": "mine-train-00001"}),
        ({"problem": "two+2="}, {}, "not_in_vocabulary", {"problem": "mine-train-00001"}),
        ({"solution": ""}, {"reward.vr_cli.gold": "solution"}, "missing", {"problem": "mine-train-00001"}),
    ],
)
def test_gold_texts_that_cannot_be_asked_about_are_told_before_training(
    row: dict[str, str],
    settings: dict[str, object],
    code: str,
    fields: dict[str, object],
    tmp_path: Path,
    policy: LanguageModel,
) -> None:
    require_gold_texts(small_spec(gold_task(tmp_path, ROWS)), policy, None)
    faulty = gold_task(tmp_path, [ROWS[0], ROWS[1] | row])
    with refuses(RefusedError, f"run.gold_text_{code}", **fields):
        require_gold_texts(small_spec(faulty | settings), policy, None)
    require_gold_texts(small_spec(faulty | {"reward.parts": {"correct": 1.0}}), policy, None)


def test_a_generator_may_have_another_vocabulary_if_it_can_write_the_gold_texts(
    tmp_path: Path, policy: LanguageModel
) -> None:
    spec = small_spec(gold_task(tmp_path, ROWS))
    model, tokenizer = tiny_model(seed=1), tiny_tokenizer()
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())
    names = vocabulary["model"]["vocab"]
    names["a"], names["4"] = names.pop("4"), names["a"]
    del names["4"]
    without_four = type(tokenizer)(
        tokenizer_object=type(tokenizer.backend_tokenizer).from_str(json.dumps(vocabulary)),
        pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
    )  # fmt: skip
    with refuses(
        RefusedError, "run.gold_text_not_in_vocabulary", part="vr_cli", model="reward.vr_cli.generator", text="'4'"
    ):
        require_gold_texts(spec, policy, LanguageModel(model, without_four))
    require_gold_texts(spec, policy, LanguageModel(model, tokenizer))


def test_the_generator_is_loaded_once_and_is_no_starting_point(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(seed=1), tiny_tokenizer()
    LanguageModel(model, tokenizer).save(tmp_path / "other")
    spec = small_spec({"reward.parts.vr_cli": 1.0, "reward.vr_cli.generator": f"path:{tmp_path / 'other'}"})
    start = StartingPoint()
    generator = start.generator(spec)
    assert generator is not None
    start.for_training(spec, "builtin:tiny")
    assert start.generator(spec) is generator
    assert start.generator(small_spec()) is None
    assert all(torch.equal(a, b) for a, b in zip(generator.model.parameters(), model.parameters(), strict=True))
    assert not any(weight.requires_grad for weight in generator.model.parameters())
