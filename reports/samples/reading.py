"""Samples from the records of a cell: from its evaluations, and completions sampled in training.

A sample's texts become the page's JSON at once, in the process that reads the cell. So sixty thousand samples never
exist as objects at the same time.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import numpy.typing as npt

from harness.records.files import DamagedRecordError, ProblemRow, read_object, typed_rows
from harness.records.rollouts import spread
from harness.records.scores import lm_eval_files
from harness.records.tables import as_array, read_parquet, require_values
from harness.words import said
from reports.page.templating import readable
from reports.samples.formulas import find_formulas

if TYPE_CHECKING:
    import pyarrow

    from harness.records import CellRecord
    from reports.samples import SampleQuota

FINAL = "final"
LONG_CHARACTERS = 4_000
"""Samples whose JSON is longer than this are in separate files, which the page loads when such a sample is opened."""
HEAD_CHARACTERS = 600
"""The number of characters of a long sample that are shown before it is opened."""
EXTRACTED_CHARACTERS = 200
"""The most characters of an extracted answer. A filter of lm-eval may return a complete completion."""

REASONS = {
    "mismatch": "not the reference",
    "unparsed": said("reports.no_answer_can_read"),
    "undecided": said("reports.judges_reply_states_no"),
    "timeout": "comparing took too long",
    "crash": "comparing failed",
}
"""Why a grader finds an answer wrong: maps the recorded reason to words for readers."""

_EVAL_COLUMNS = [
    *("step", "final", "task", "problem_id", "sample", "text", "n_tokens", "truncated", "extracted", "correct"),
    *("reasons", "turns"),
]
_ROLLOUT_COLUMNS = [
    *("step", "problem_id", "sample", "text", "tokens", "reward", "correct", "truncated", "turns"),
]
_TOKEN_COLUMNS = ["token/chars", "token/entropy", "token/advantage", "token/log_ratio"]


@dataclass(frozen=True, slots=True)
class Sample:
    when: str
    """When it was drawn: `final`, or `evaluation 8` or `training 8` with the step."""
    problem: int
    """The index of its problem in `CellSamples.problems`."""
    sample: int
    is_right: bool | None
    """None if it was not graded."""
    is_cut: bool
    graders_disagree: bool
    n_tokens: int | None
    """None if it is unknown, as for some imports."""
    long: bool
    """True if `body` is so long that the page loads it only when the sample is opened."""
    head: str
    """For a long sample, the body with only the beginning of the text; otherwise equal to `body`."""
    body: str
    """The text and everything else that the page shows, as JSON. The text is from a model, hence untrusted."""


@dataclass(frozen=True)
class ShownProblem:
    """A problem that samples refer to."""

    task: str
    problem_id: str
    prompt: str | None
    """The prompt and the reference answer as JSON, with formulas; None if an import lacks them."""


@dataclass(frozen=True)
class CellSamples:
    problems: list[ShownProblem]
    samples: list[Sample]


def read_samples(cell: CellRecord, shown: SampleQuota, most_files: int, most_formulas: int) -> CellSamples:
    """Read what the page shows of a cell: the same rows for every cell that evaluated the same problems.

    An evaluation shows the first sample of each problem before the second of any. Raises DamagedRecordError.
    """
    reader = _Reader(cell.read_problems(), most_formulas)
    samples = [*reader.evaluated(cell, shown), *reader.trained(cell, shown, most_files)]
    return CellSamples(reader.problems, samples)


class _Recorded(TypedDict, total=False):
    """A sample as it is recorded by an evaluation or by training."""

    step: int
    task: str
    problem_id: str | int
    sample: int
    text: str
    correct: bool | None
    truncated: bool | None
    n_tokens: int | None
    tokens: list[int] | None
    reward: float | None
    extracted: str | None
    reasons: str | None
    """JSON."""
    turns: str | None
    """JSON."""


_TokenRecord = TypedDict(
    "_TokenRecord",
    {
        "token/chars": list[int] | None,
        "token/entropy": list[float | None] | None,
        "token/advantage": list[float | None] | None,
        "token/log_ratio": list[list[float | None] | None] | None,
    },
    total=False,
)


class _JudgedTask(TypedDict):
    name: str
    rows: list[dict[str, object]]


class _Judged(TypedDict):
    """A document of lm-eval under one filter."""

    doc_id: int
    filter: str
    prompt: str | list[dict[str, str]]
    reference: str
    completions: list[str]
    n_tokens: list[int]
    truncated: list[bool]
    filtered: str | list[object] | float | int | None
    metrics: dict[str, float]


def read_lm_eval(folder: Path, most: int, most_formulas: int) -> CellSamples:
    """Read the documents of lm-eval from each `<task>.json` in a folder of `bench eval --lm-eval`.

    A document is one sample with all its completions, because lm-eval's metrics score them together. Raises
    DamagedRecordError.
    """
    reader = _Reader([], most_formulas)
    samples: list[Sample] = []
    for path in lm_eval_files(folder):
        recorded = typed_rows(path, [read_object(path)], _JudgedTask)[0]
        rows = typed_rows(path, recorded["rows"], _Judged)
        samples += islice(reader.judged(recorded["name"], rows), most - len(samples))
    return CellSamples(reader.problems, samples)


class _Reader:
    """Reads samples, and numbers their problems in order of appearance."""

    def __init__(self, rows: Iterable[ProblemRow], most_formulas: int) -> None:
        self.problems: list[ShownProblem] = []
        self._rows = {(row["split"], row["task"], row["problem_id"]): row for row in rows}
        self._training_task = {row["problem_id"]: row["task"] for row in self._rows.values() if row["split"] == "train"}
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._formulas_left = most_formulas

    def evaluated(self, cell: CellRecord, shown: SampleQuota) -> Iterator[Sample]:
        """Yield samples of evaluations: of the final one first, then of those during training."""
        table = cell.read_evals(_EVAL_COLUMNS)
        # Imported records may have scores without texts.
        if table is None or "text" not in table.column_names:
            return
        finals = are_final(table)
        # lexsort's last key is the primary one: final samples first, then by sample number, then as recorded.
        order = np.lexsort((np.arange(len(table)), as_array(table["sample"]), ~finals))
        n_final = int(finals.sum())
        kept = np.concatenate([order[:n_final][: shown.final], order[n_final:][: shown.curve]])
        rows: list[_Recorded] = table.take(kept).to_pylist()
        for is_final, row in zip(finals[kept], rows, strict=True):
            when = FINAL if is_final else f"evaluation {row['step']}"
            graders = _graders(cell, row)
            yield self._sample(
                row,
                when,
                self._number("test", row["task"], str(row["problem_id"])),
                row.get("n_tokens"),
                graders,
                {"extracted": row.get("extracted"), "graders": graders, "turns": _turns(row, cell.evals)},
            )

    def trained(self, cell: CellRecord, shown: SampleQuota, most_files: int) -> Iterator[Sample]:
        """Yield the completions of training, file by file."""
        paths = spread(cell.rollout_files(), most_files)
        spec = cell.spec if paths else {}
        task = str(spec.get("task", {}).get("train", ""))
        parts = [f"reward/{part}" for part in spec.get("reward", {}).get("parts", {})]
        left = dict.fromkeys(shown.steps or (), shown.per_step)
        for path in paths:
            table = read_parquet(path, [*_ROLLOUT_COLUMNS, *_TOKEN_COLUMNS, *parts])
            if not {"step", "text", "problem_id", "sample"} <= set(table.column_names):
                continue
            if shown.steps is not None:
                table = table.take(_first_of_each(as_array(table["step"]), left))
            rows: list[_Recorded]
            of_tokens: list[_TokenRecord]
            rewards: list[dict[str, float | None]]
            rows, of_tokens, rewards = (
                table.select([name for name in names if name in table.column_names]).to_pylist()
                for names in (_ROLLOUT_COLUMNS, _TOKEN_COLUMNS, parts)
            )
            for row, of_token, by_part in zip(rows, of_tokens, rewards, strict=True):
                tokens = row.get("tokens")
                problem_id = str(row["problem_id"])
                yield self._sample(
                    row,
                    f"training {row['step']}",
                    self._number("train", self._training_task.get(problem_id, task), problem_id),
                    None if tokens is None else len(tokens),
                    [],
                    {
                        "reward": _rounded(row.get("reward")),
                        "rewards": [[name.removeprefix("reward/"), _rounded(value)] for name, value in by_part.items()],
                        "tokens": _tokens(of_token, row["text"], path),
                        "turns": _turns(row, path),
                    },
                )

    def judged(self, task: str, rows: Iterable[_Judged]) -> Iterator[Sample]:
        """Yield a sample for each document of an lm-eval task, with the metrics of all its filters as graders."""
        documents: dict[int, list[_Judged]] = {}
        for row in rows:
            documents.setdefault(row["doc_id"], []).append(row)
        for doc_id, by_filter in documents.items():
            one, name = by_filter[0], str(doc_id)
            problem = ProblemRow(
                task=task, split="test", problem_id=name, prompt=one["prompt"], answer=one["reference"]
            )
            self._rows["test", task, name] = problem
            text = _together(one["completions"])
            graders = [
                [_name_of_metric(metric, row["filter"]), _said_by_metric(value), *_extracted(row)]
                for row in by_filter
                for metric, value in row["metrics"].items()
            ]
            # The first metric of the first filter decides, like the first grader in bench's own evaluations.
            said = graders[0][1] if graders else None
            right = None if said is None or isinstance(said, float) else is_match(said)
            sample = _Recorded(text=text, sample=0, truncated=any(one["truncated"]), correct=right)
            number = self._number("test", task, name)
            yield self._sample(sample, FINAL, number, sum(one["n_tokens"]), graders, {"graders": graders})

    def _number(self, split: str, task: str, problem_id: str) -> int:
        """Return the index of a problem, adding it to the list if it is new."""
        key = (split, task, problem_id)
        if key not in self._numbers:
            self._numbers[key] = len(self.problems)
            row = self._rows.get(key)
            prompt = None
            if row is not None:
                asked = {"prompt": self._text(_as_text(row["prompt"])), "answer": self._text(str(row["answer"]))}
                prompt = script_json(asked)
            self.problems.append(ShownProblem(readable(task), readable(problem_id), prompt))
        return self._numbers[key]

    def _text(self, text: str) -> dict[str, object]:
        """Return a text with its formulas, translating no more than are left of the quota."""
        text = readable(text)
        found = [*islice(find_formulas(text), self._formulas_left)]
        self._formulas_left -= len(found)
        return {"text": text, "formulas": found} if found else {"text": text}

    def _sample(
        self,
        row: _Recorded,
        when: str,
        problem: int,
        n_tokens: int | None,
        graders: Sequence[Sequence[str | float | None]],
        facts: Mapping[str, object],
    ) -> Sample:
        text = str(row["text"])
        shown = {name: value for name, value in facts.items() if value not in (None, [])}
        if "extracted" in shown:
            shown["extracted"] = readable(str(shown["extracted"]))
        body = script_json({**self._text(text), **shown})
        is_long = len(body) > LONG_CHARACTERS
        # Token values refer to the complete text, so a head, which has only its beginning, omits them.
        shown.pop("tokens", None)
        head = script_json({"text": readable(text[:HEAD_CHARACTERS]), "length": len(text), **shown})
        right = row.get("correct")
        return Sample(
            # Thousands of samples share a few values of `when`.
            when=sys.intern(when),
            problem=problem,
            sample=int(row["sample"]),
            is_right=None if right is None else bool(right),
            is_cut=bool(row.get("truncated")),
            graders_disagree=len({is_match(said) for _, said, *_ in graders if not isinstance(said, float)}) > 1,
            n_tokens=n_tokens,
            long=is_long,
            head=head if is_long else body,
            body=body,
        )


def steps_of(path: Path) -> npt.NDArray[np.int_]:
    """Return the step of each completion in a rollout file."""
    table = read_parquet(path, ["step"])
    if "step" not in table.column_names:
        return np.zeros(0, dtype=int)
    require_values(path, table, ["step"])
    return as_array(table["step"])


def _first_of_each(steps: npt.NDArray[np.int_], left: dict[int, int]) -> npt.NDArray[np.intp]:
    """Return the positions of each step's first completions, up to the number left to show, and update `left`."""
    found = [np.flatnonzero(steps == step)[:most] for step, most in left.items()]
    left.update({step: most - len(places) for (step, most), places in zip(left.items(), found, strict=True)})
    return np.sort(np.concatenate([np.zeros(0, dtype=np.intp), *found]))


def are_final(table: pyarrow.Table | None) -> npt.NDArray[np.bool_]:
    """Return whether each sample belongs to the final evaluation. All samples of `bench eval` do."""
    if table is None:
        return np.zeros(0, dtype=bool)
    if "final" not in table.column_names:
        return np.ones(len(table), dtype=bool)
    return as_array(table["final"])


def _graders(cell: CellRecord, row: _Recorded) -> list[list[str]]:
    """Return [grader, reason of its verdict] for each grader, the deciding one first; [] for imported samples.

    Raises DamagedRecordError if the recorded reasons are not a JSON object.
    """
    recorded = row.get("reasons")
    if recorded is None:
        return []
    try:
        by_grader = json.loads(recorded).items()
    except (ValueError, AttributeError):
        raise DamagedRecordError("reports.sample_reasons_damaged", path=cell.evals, reasons=recorded) from None
    return [[readable(str(grader)), readable(str(reason))] for grader, reason in by_grader]


def _name_of_metric(metric: str, filter_name: str) -> str:
    return readable(metric if filter_name == "none" else f"{metric} of {filter_name}")


def _said_by_metric(value: float) -> str | float | None:
    """Map a metric of 1 or 0 to the reason that one of bench's graders would record; other values stay numbers."""
    return {1.0: "match", 0.0: "mismatch"}.get(value, _rounded(value))


def _extracted(row: _Judged) -> list[str]:
    """Return what the filter extracted, as a list that is empty if it is the unchanged completion."""
    filtered = row["filtered"]
    text = filtered if isinstance(filtered, str) else json.dumps(filtered, ensure_ascii=False)
    return [] if [text] == row["completions"] else [readable(text[:EXTRACTED_CHARACTERS])]


def _together(completions: Sequence[str]) -> str:
    if len(completions) == 1:
        return completions[0]
    return "\n\n".join(f"[completion {number}]\n{text}" for number, text in enumerate(completions))


def is_match(said: str | None) -> bool:
    """Return whether a grader's reason means that the answer is correct."""
    return said == "match"


def _turns(row: _Recorded, path: Path) -> list[list[object]]:
    """Return [end in characters, end in tokens, reply, reward] for each turn with an environment.

    [] if there is no environment. Raises DamagedRecordError if the recorded turns cannot be read.
    """
    recorded = row.get("turns")
    if not recorded:
        return []
    try:
        turns = json.loads(recorded)
        return [
            [int(one["end_chars"]), int(one["end_tokens"]), readable(str(one["reply"])), _rounded(float(one["reward"]))]
            for one in turns
        ]
    except (ValueError, TypeError, KeyError):
        raise DamagedRecordError("reports.sample_turns_damaged", path=path, turns=recorded) from None


def _tokens(row: _TokenRecord, text: str, path: Path) -> dict[str, object] | None:
    """Return the recorded entropy, advantage and log-ratio of each token, or None if tokens were not recorded.

    Numbers are in thousandths, which keeps them short. The log-ratio is from the last pass over the completion. Raises
    DamagedRecordError if the tokens' characters do not add up to the text.
    """
    chars = row.get("token/chars")
    if not chars:
        return None
    if sum(chars) != len(text):
        raise DamagedRecordError("reports.token_characters_differ", path=path)
    scored = [epoch for epoch in row.get("token/log_ratio") or [] if epoch is not None]
    columns = {
        "entropy": row.get("token/entropy"),
        "advantage": row.get("token/advantage"),
        "log_ratio": scored[-1] if scored else None,
    }
    return {"chars": chars} | {name: _thousandths(values) for name, values in columns.items() if values is not None}


def _thousandths(values: Sequence[float | None]) -> list[int | None] | int | None:
    """Return the values in thousandths, or a single number if all are equal."""
    rounded = [round(1000 * one) if one is not None and math.isfinite(one) else None for one in values]
    return rounded[0] if len(set(rounded)) == 1 else rounded


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _as_text(prompt: str | list[dict[str, str]]) -> str:
    """Return a prompt as text. Chat messages are joined in order, each with its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{message.get('role')}] {message.get('content')}" for message in prompt)


def script_json(document: object) -> str:
    """Return JSON that is safe inside a page's script: no text in it can end the script or a line."""
    # ASCII JSON has no Unicode line separators, and without < it cannot contain a closing script tag.
    return _ENCODER.encode(document).replace("<", "\\u003c")


_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
