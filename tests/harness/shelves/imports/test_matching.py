"""Which problems of two tools' results are paired: those of one content, whatever their ids; and what is no pass@1."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from harness.errors import RefusedError
from harness.records import CellRecord
from harness.records.files import append_jsonl
from harness.records.scores import content_of, match_problems
from harness.shelves.imports.base import ImportedRun, ImportedSample, Score
from harness.shelves.imports.cells import gathered
from harness.shelves.imports.sources import read_sources
from tests.harness.cli.conftest import Bench, bench
from tests.harness.cli.test_compare import write
from tests.harness.shelves.imports.test_import import contrasts_of
from tests.refusals import refuses

__all__ = ["bench"]
NUMBERS = ("difference_pp", "low_pp", "high_pp", "p", "correlation", "n_pairs", "verdict")
N = 40
TIME = "2026-01-01T00-00-00.000001"
EASY = [int(problem < N // 2) for problem in range(N)]
"""Right on the first half of the problems."""


def nearly(right: Sequence[int]) -> list[int]:
    rng = random.Random(1)
    return [one if rng.random() < 0.86 else 1 - one for one in right]


def write_lm_eval(folder: Path, right: Sequence[int], ids: Sequence[int], **changes: object) -> str:
    """Samples of lm-eval, in the order of their ids, whose examples in the prompt differ from folder to folder."""
    rows = [
        {
            "doc_id": ids[problem],
            "doc": {"q": f"What is {problem}+1?", "a": str(problem + 1)},
            "target": str(problem + 1),
            "arguments": {"gen_args_0": {"arg_0": f"Examples of {folder.name}. Q: What is {problem}+1?"}},
            "resps": [["x"]],
            "filtered_resps": ["x"],
            "filter": "none",
            "metrics": ["exact_match"],
            "exact_match": float(one),
        }
        | changes
        for problem, one in enumerate(right)
    ]
    folder.mkdir(parents=True)
    lines = [json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: str(row["doc_id"]))]
    (folder / f"samples_sums_{TIME}.jsonl").write_text("".join(lines))
    return str(folder)


def write_table(path: Path, rows: Sequence[tuple[object, ...]], columns: str = "problem,correct,prompt,answer") -> str:
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path.name


@pytest.mark.slow
def test_reversed_ids_give_the_answer_of_ids_in_order(bench: Bench, tmp_path: Path) -> None:
    out, forward = tmp_path / "out", range(N)
    write_lm_eval(out / "base", EASY, forward)
    write_lm_eval(out / "right", nearly(EASY), forward)
    write_lm_eval(out / "reversed", nearly(EASY), forward[::-1])
    right, reversed_ids = (
        bench("compare", out / arm, out / "base", "--json").document for arm in ("right", "reversed")
    )
    assert right["correlation"] == pytest.approx(0.85, abs=0.01) and right["n_pairs"] == N
    assert {name: reversed_ids[name] for name in NUMBERS} == {name: right[name] for name in NUMBERS}
    found = {name: reversed_ids["problems"][name] for name in ("matched_by", "matched", "of")}
    assert found == {"matched_by": "content", "matched": N, "of": N}

    assert bench("import", "mine", "out/{arm}/...", "--baseline", "base", "--json").code == 0
    contrasts = {row["arm"]: row for row in contrasts_of("mine")}
    assert {name: contrasts["reversed"][name] for name in NUMBERS} == {
        name: contrasts["right"][name] for name in NUMBERS
    }
    assert contrasts["reversed"]["correlation"] == right["correlation"]
    recorded = bench("compare", "mine/reversed", out / "right", "--json").document
    assert (recorded["difference_pp"], recorded["problems"]["matched_by"]) == (0, "content")


@pytest.mark.slow
def test_problems_are_matched_by_id_where_texts_are_unknown(bench: Bench, tmp_path: Path) -> None:
    rows = [(f"p{problem}", right) for problem, right in enumerate(EASY)]
    for name in ("base", "tuned"):
        write_table(tmp_path / f"{name}.csv", rows, "problem,correct")
    write_table(tmp_path / "known.csv", [(*row, f"what {row[0]}", 1) for row in rows])
    for treatment in ("tuned.csv", "known.csv"):
        found = bench("compare", treatment, "base.csv", "--json").document["problems"]
        assert (found["matched_by"], found["matched"], found["of"]) == ("id", N, N)
    imported = bench("import", "mine", "{arm}.csv", "--baseline", "base", "--json").document
    assert imported["problems"]["results"]["matched_by"] == "id"
    assert {row["problems"]["matched_by"] for row in contrasts_of("mine")} == {"id"}


@pytest.mark.slow
def test_ids_that_the_contents_contradict_are_refused(bench: Bench, tmp_path: Path) -> None:
    def refusal(*words: str) -> tuple[str, object]:
        error = bench(*words).error
        assert error is not None
        return error.code.rpartition(".")[2], error.fields.get("n_shared", error.fields.get("problem"))

    base = write_table(tmp_path / "base.csv", [(problem, 1, f"what {problem}", 1) for problem in range(N)])
    write_table(tmp_path / "other.csv", [(problem, 1, f"who {problem}", 1) for problem in range(N)])
    assert refusal("compare", "other.csv", base) == ("few_problems_in_common", 0)
    assert refusal("import", "mine", "{arm}.csv") == ("few_problems_in_common", 0)
    write_table(tmp_path / "third.csv", [(problem, 1) for problem in range(N)], "problem,correct")
    assert refusal("import", "mine", "{arm}.csv") == ("problem_ids_ambiguous", "0")
    assert not (tmp_path / "runs").exists()
    twice = [(0, 0, 1, "what", 1), (0, 1, 1, "who", 1)]
    write_table(tmp_path / "twice.csv", twice, "problem,sample,correct,prompt,answer")
    assert refusal("compare", "twice.csv", "twice.csv") == ("problem_id_repeated", None)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(), (0, 1, 2)])
def test_a_part_in_common_is_compared_alone_and_counted(bench: Bench, tmp_path: Path, seeds: tuple[int, ...]) -> None:
    """The treatment has problems 0 to 29, the baseline 5 to 34, under other ids."""
    rng = random.Random(0)
    right = {arm: {seed: [rng.randrange(2) for _ in range(35)] for seed in seeds or (0,)} for arm in ("a", "b")}
    columns = "arm,problem,correct,prompt,answer" + (",seed" if seeds else "")
    for arm, asked in (("a", range(30)), ("b", range(5, 35))):
        rows = [
            (arm, f"{arm}{problem}", right[arm][seed][problem], f"what is {problem}", problem, seed)[
                : 6 if seeds else 5
            ]
            for seed in right[arm]
            for problem in asked
        ]
        write_table(tmp_path / f"{arm}.csv", rows, columns)
    shared = [[right[arm][seed][problem] for seed in right[arm] for problem in range(5, 30)] for arm in ("a", "b")]
    row = bench("compare", "a.csv", "b.csv", "--json").document
    assert row["difference_pp"] == pytest.approx(100 * (fmean(shared[0]) - fmean(shared[1])))
    assert (row["unit"], row["n_pairs"]) == (("seed", 3) if seeds else ("problem", 25))
    assert (row["problems"]["matched"], row["problems"]["of"]) == (25, 35)
    assert bench("import", "both", "a.csv", "b.csv", "--baseline", "b").code == 0
    (imported,) = contrasts_of("both")
    assert {name: imported[name] for name in NUMBERS} == {name: row[name] for name in NUMBERS}
    assert imported["problems"] == row["problems"]


def test_problems_that_repeat_are_matched_in_the_order_of_their_ids() -> None:
    one = {"2": "x", "10": "x", "3": "y", "4": "z"}
    other = {"a": "z", "b": "x", "c": "y", "d": "x"}
    matching, names = match_problems("sums", {"one": one, "other": other})
    assert names["other"] == {"b": "2", "d": "10", "c": "3", "a": "4"}
    assert (matching.by, matching.matched, matching.of, matching.repeated) == ("content", 4, 4, 1)
    reordered = match_problems("sums", {"one": dict(reversed(one.items())), "other": dict(reversed(other.items()))})
    assert reordered[1]["other"] == names["other"]


def test_a_content_is_the_same_where_only_its_writing_differs() -> None:
    assert content_of(" What is\r\n1+1? ", "2") == content_of("What is\n1+1?", "2")
    assert content_of({"q": "caf\u00e9", "a": ["1"]}) == content_of({"a": ["1"], "q": "cafe\u0301"})
    assert (
        len({content_of("1 + 1"), content_of("1+1"), content_of("1+", "1"), content_of("A")} | {content_of("a")}) == 5
    )


def write_inspect(path: Path, right: Sequence[object], **score: object) -> Path:
    """A log of inspect_ai; the ids of its messages are new in every log, as inspect_ai makes them."""
    metrics = {"name": "match", "scorer": "match", "metrics": {"accuracy": {"value": 0.75}}, **score}
    evaluation = {"model": "m", "task": "sums", "dataset": {"name": "d"}}
    with zipfile.ZipFile(path, "w") as log:
        header = {"status": "success", "eval": evaluation, "results": {"scores": [metrics]}}
        log.writestr("header.json", json.dumps(header))
        for problem, value in enumerate(right):
            message = {"id": f"{path.name}{problem}", "role": "user", "content": f"What is {problem}?"}
            sample = {
                "id": problem,
                "epoch": 1,
                "input": [message],
                "target": "1",
                "scores": {"match": {"value": value}},
            }
            log.writestr(f"samples/{problem}_epoch_1.json", json.dumps(sample))
    return path


def test_ids_of_messages_are_no_part_of_a_problem(tmp_path: Path) -> None:
    runs, _ = read_sources([str(write_inspect(tmp_path / f"{name}.eval", ["C", "I"])) for name in "ab"])
    one, other = ([sample.content for sample in run.samples] for run in runs)
    assert one == other and len({*one}) == 2 and None not in one


@pytest.mark.slow
def test_a_majority_vote_is_not_taken_for_pass_at_1(bench: Bench, tmp_path: Path) -> None:
    vote: dict[str, Any] = {"filter": "maj@4", "resps": [["1", "2", "1", "1"]], "filtered_resps": ["1"]}
    for arm in ("base", "tuned"):
        write_lm_eval(tmp_path / "out" / arm, EASY, range(N), **vote)
    alone = bench("compare", "out/tuned", "out/base").error
    assert alone is not None and alone.code == "shelves.imports.lm_eval_verdict_of_several"
    assert (alone.fields["of_filter"], alone.fields["n_completions"]) == ("maj@4", 4)
    for arm, value in (("base", 0.5), ("tuned", 0.75)):
        document = {"results": {"sums": {"exact_match,maj@4": value}}}
        (tmp_path / "out" / arm / f"results_{TIME}.json").write_text(json.dumps(document))
    unnamed = bench("compare", "out/tuned", "out/base").error
    assert unnamed is not None and unnamed.fields["known"] == "eval.final.sums.exact_match/maj@4"
    named = bench("compare", "out/tuned", "out/base", "--metric", "eval.final.sums.exact_match/maj@4", "--json")
    assert (named.document["metric"], named.document["difference_pp"]) == ("eval.final.sums.exact_match/maj@4", 25)
    assert bench("import", "mine", "out/{arm}/...", "--metric", "eval.final.sums.pass@1").code == 2


@pytest.mark.parametrize("functions", [["take_first_k", "majority_vote", "take_first"], ["take_first"], ["custom"]])
def test_only_a_filter_that_takes_one_completion_judges_it(tmp_path: Path, functions: list[str]) -> None:
    write_lm_eval(tmp_path / "out", EASY, range(N), filter="score", resps=[["1", "2", "1", "1"]])
    pipeline = [{"name": "score", "filter": [{"function": name} for name in functions]}]
    document = {"results": {"sums": {"exact_match,score": 0.5}}, "configs": {"sums": {"filter_list": pipeline}}}
    (tmp_path / "out" / f"results_{TIME}.json").write_text(json.dumps(document))
    ((run,), _) = read_sources([str(tmp_path / "out")])
    assert len(run.samples) == (N if functions == ["take_first"] else 0)
    assert [score.metric for score in run.scores] == [
        "exact_match/score" if "majority_vote" in functions else "exact_match"
    ]


def test_metrics_of_several_completions_or_epochs_keep_their_names(tmp_path: Path) -> None:
    several = {"metrics": ["maj@4", "pass@16"], "maj@4": 1.0, "pass@16": 1.0}
    with refuses(RefusedError, "shelves.imports.lm_eval_without_verdict", number=1, metrics="maj@4, pass@16"):
        read_sources([write_lm_eval(tmp_path / "out", EASY, range(N), **several)])
    ((run,), _) = read_sources([str(write_inspect(tmp_path / "a.eval", [0.5], reducer="mode"))])
    assert [score.metric for score in run.scores] == ["accuracy/mode"] and not run.samples
    ((run,), _) = read_sources([str(write_inspect(tmp_path / "b.eval", [0.5], reducer="mean"))])
    assert [score.metric for score in run.scores] == ["accuracy"]


@pytest.mark.slow
def test_runs_of_ours_whose_problems_changed_do_not_compare(bench: Bench, tmp_path: Path) -> None:
    home = tmp_path / "runs"

    def add(cells: Sequence[CellRecord], prompt: str, answer: str) -> None:
        about = {"task": "arithmetic", "split": "test", "problem_id": "1+1"}
        for cell in cells:
            append_jsonl(cell.path / "problems.jsonl", [{**about, "prompt": prompt, "answer": answer}])

    for name, prompt, answer in (("one", "1+1?", "2"), ("template", "Q: 1+1", "2"), ("changed", "1+1?", "3")):
        add(write(home, name, {"up": 0.0}, {}, seeds=3).cells, prompt, answer)
    same = bench("compare", "one/up", "template/up", "--json")
    assert same.code == 0 and "problems" not in same.document
    result = bench("compare", "one/up", "changed/up")
    assert (result.code, result.out) == (2, "")
    assert result.error is not None and result.error.code == "cli.answers_differ"
    answers = [result.error.fields[f"{side}_answer"] for side in ("treatment", "baseline")]
    assert answers == ["2", "3"] and result.error.fields["n_problems"] == 1


def test_a_score_over_problems_that_are_left_out_is_left_out_too() -> None:
    def run(arm: str, problems: Sequence[int]) -> ImportedRun:
        samples = [ImportedSample("sums", f"{arm}{one}", 0, True, content=str(one)) for one in problems]
        return ImportedRun(
            arm, arm, arm, samples=samples, scores=[Score("sums", "acc", 1.0), Score("other", "acc", 1.0)]
        )

    cells, matching = gathered([run("a", range(4)), run("b", range(1, 5))])
    assert (matching["sums"].matched, matching["sums"].of) == (3, 5)
    for found in cells.values():
        assert [one.problem_id for one in found.samples] == ["a1", "a2", "a3"]
        assert [score.task for score in found.scores] == ["other"]
