"""An evaluation: what is missing is drawn, nothing twice, and stored text can be graded again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.evaluate import regrade
from evals.grading.asked_model import cohens_kappa
from evals.sampler import Draw, Drawn, SamplingParams
from harness.errors import RefusedError
from harness.evaluate.evaluation import TaskEvaluation
from harness.records.files import read_jsonl
from harness.sampling.sampler import EngineSampler, OnDrawn
from harness.sampling.store import SAMPLES_FILE, SampleStore
from tests.harness.evaluate.conftest import Make
from tests.harness.shelves.judges.judge_server import serving, write_judge
from tests.refusals import refuses


class Killed(BaseException):
    pass


class Counting:
    """A sampler that counts what it draws, and may be killed on the way."""

    def __init__(self, sampler: EngineSampler, dies_after: int | None = None) -> None:
        self._sampler, self._dies_after = sampler, dies_after
        self.language_model = sampler.language_model
        self.drawn: list[tuple[str, int]] = []

    def draw(self, draws: Sequence[Draw], decoding: SamplingParams, on_drawn: OnDrawn) -> list[Drawn]:
        def told(index: int, drawn: Drawn) -> None:
            if len(self.drawn) == self._dies_after:
                raise Killed
            self.drawn.append((draws[index].example, draws[index].sample))
            on_drawn(index, drawn)

        return self._sampler.draw(draws, decoding, told)


def run(evaluation: TaskEvaluation, home: Path, sampler: Any) -> dict[str, Any]:
    return evaluation.run(home, None if sampler is None else lambda: sampler)


def stored(evaluation: TaskEvaluation, home: Path) -> list[Any]:
    return SampleStore(evaluation.folder(home) / SAMPLES_FILE).rows()


def test_every_sample_is_drawn_once_and_scored(evaluation: Make, sampler: EngineSampler, home: Path) -> None:
    asked, counting = evaluation(), Counting(sampler)
    document = run(asked, home, counting)
    assert len(counting.drawn) == len(set(counting.drawn)) == 24
    rows = stored(asked, home)
    assert {(row["problem_id"], row["sample"]) for row in rows} == set(counting.drawn)
    correct = sum(row["correct"] for row in rows)
    assert document["metrics"]["avg@n"] == pytest.approx(correct / 24)
    assert 0 < correct < 24
    folder = Path(document["path"])
    assert json.loads((folder / "scores.json").read_text()) == json.loads(json.dumps(document))
    (start,) = read_jsonl(folder / "starts.jsonl")
    assert start["model"]["architecture"] == "LlamaForCausalLM"
    assert not (folder / "evals.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dies_after", [0, 1, 13])
def test_a_killed_evaluation_goes_on_with_what_is_missing(
    evaluation: Make, sampler: EngineSampler, home: Path, tmp_path: Path, dies_after: int
) -> None:
    killed, second = Counting(sampler, dies_after), Counting(sampler)
    with pytest.raises(Killed):
        run(evaluation(), home, killed)
    resumed = run(evaluation(), home, second)
    assert len(killed.drawn) == dies_after
    assert not set(killed.drawn) & set(second.drawn)
    assert len(killed.drawn) + len(second.drawn) == 24
    unbroken = run(evaluation(), tmp_path / "unbroken", Counting(sampler))
    assert resumed["metrics"] == unbroken["metrics"]
    texts = {(row["problem_id"], row["sample"]): row["text"] for row in stored(evaluation(), tmp_path / "unbroken")}
    assert {(row["problem_id"], row["sample"]): row["text"] for row in stored(evaluation(), home)} == texts


def test_a_torn_line_is_drawn_again(evaluation: Make, sampler: EngineSampler, home: Path) -> None:
    with pytest.raises(Killed):
        run(evaluation(), home, Counting(sampler, 5))
    with (evaluation().folder(home) / "evals.jsonl").open("a") as file:
        file.write('{"task": "arithm')
    second = Counting(sampler)
    run(evaluation(), home, second)
    assert len(second.drawn) == 19
    assert len(stored(evaluation(), home)) == 24


def test_more_samples_and_problems_are_added_to_what_is_there(
    evaluation: Make, sampler: EngineSampler, home: Path
) -> None:
    few, more = Counting(sampler), Counting(sampler)
    first = run(evaluation(problems=3, samples=2), home, few)
    document = run(evaluation(problems=4, samples=3), home, more)
    assert (len(few.drawn), len(more.drawn)) == (6, 6)
    assert (document["n_problems"], document["n_samples"]) == (4, 3)
    again = run(evaluation(problems=3, samples=2), home, None)
    assert again == first
    assert len(stored(evaluation(), home)) == 12


def test_verdicts_of_two_graders_are_not_mixed_by_a_kill(
    evaluation: Make, sampler: EngineSampler, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(evaluation(samples=2), home, sampler)
    exact = evaluation(samples=4, grader="exact")
    with pytest.raises(Killed):
        run(exact, home, Counting(sampler, dies_after=3))
    regraded: list[int] = []

    def counted(task: Any, problems: Any, rows: Any, grader: str) -> Any:
        regraded.append(len(rows))
        return regrade(task, problems, rows, grader)

    monkeypatch.setattr("harness.sampling.store.regrade", counted)
    run(exact, home, sampler)
    run(exact, home, sampler)
    assert regraded == [24]


def test_other_conditions_have_a_store_of_their_own(evaluation: Make) -> None:
    folders = {
        evaluation(**changed).folder(Path("home"))
        for changed in (
            {},
            {"seed": 1},
            {"params": SamplingParams(33)},
            {"template": "boxed"},
            {"thinking_budget_tokens": 9},
        )
    }
    assert len(folders) == 5
    assert evaluation(problems=2, samples=9, grader="exact").folder(Path("home")) in folders


def test_samples_of_another_spec_are_refused(evaluation: Make, sampler: EngineSampler, home: Path) -> None:
    asked = evaluation()
    run(asked, home, sampler)
    path = asked.folder(home) / "spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 3}))
    with refuses(RefusedError, "sampling.samples_of_another_spec", differing="seed"):
        run(asked, home, sampler)


def test_regrading_needs_no_model_and_all_samples(evaluation: Make, sampler: EngineSampler, home: Path) -> None:
    with pytest.raises(RefusedError, match="24 samples are not there, and --regrade draws none"):
        run(evaluation(), home, None)
    by_number = run(evaluation(), home, sampler)
    rows = stored(evaluation(), home)
    with SampleStore.opened(evaluation().folder(home), evaluation().identity) as store:
        store.compact([row | {"correct": True} for row in rows])
    assert run(evaluation(), home, None)["metrics"] == by_number["metrics"]
    exact = run(evaluation(grader="exact"), home, None)
    assert exact["grader"] == "exact"


def test_another_grader_grades_what_is_there(evaluation: Make, sampler: EngineSampler, home: Path) -> None:
    run(evaluation(grader="exact"), home, sampler)
    counting = Counting(sampler)
    document = run(evaluation(grader="numeric"), home, counting)
    assert (counting.drawn, document["grader"]) == ([], "numeric")
    assert all(json.loads(row["verdicts"])["numeric"] == row["correct"] for row in stored(evaluation(), home))


def test_two_processes_do_not_write_one_store(evaluation: Make, sampler: EngineSampler, home: Path) -> None:
    asked = evaluation()
    with (
        SampleStore.opened(asked.folder(home), asked.identity),
        pytest.raises(RefusedError, match="by another process"),
    ):
        run(asked, home, sampler)


def test_stored_samples_are_judged_without_drawing_any(
    evaluation: Make, sampler: EngineSampler, home: Path, tmp_path: Path
) -> None:
    def says_by_length(question: str) -> str:
        return f"Verdict: {'yes' if len(question) % 2 else 'no'}"

    run(evaluation(), home, sampler)
    with serving(says_by_length) as server:
        judge = write_judge(tmp_path, address=server.address)
        judged = run(evaluation(grader=judge), home, None)
        asked = len(server.requests)
        assert asked == len(set(server.questions)) > 0
        assert run(evaluation(grader=judge), home, None)["metrics"] == judged["metrics"]
        drawn = run(evaluation(grader=judge), tmp_path / "another", sampler)
    assert drawn["metrics"] == judged["metrics"], "it makes no difference when samples are judged"
    assert len(server.requests) == 2 * asked, "a home asks once"
    rows = stored(evaluation(grader=judge), home)
    pairs = [(says[judge], says["numeric"]) for says in (json.loads(row["verdicts"]) for row in rows)]
    found = next(one for one in judged["disagreement"] if set(one["graders"]) == {judge, "numeric"})
    assert found["kappa"] == cohens_kappa(pairs)
