"""Precision and recall of the graders on completions that were graded by hand.

python -m tests.evals.grading.quality

`triples/<family>.jsonl` holds completions of made-up problems with the reference answer, the right verdict, the graders
that apply to that reference, and the form of the answer that the completion is an example of.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from evals.graders import grade

FOLDER = Path(__file__).parent / "triples"
FAMILIES = ("gsm8k", "math500", "aime")
EXTRACTION = "chain"
# What the shipped tasks of each family grade with.
DECIDING = {"gsm8k": "numeric", "math500": "math", "aime": "math"}


class Triple(TypedDict):
    """A completion with the verdict that it deserves."""

    form: str
    completion: str
    answer: str
    correct: bool
    graders: list[str]


@dataclass
class Quality:
    """What one grader made of one family's triples."""

    true_positives: int = 0
    true_negatives: int = 0
    false_positives: list[Triple] = field(default_factory=list)
    false_negatives: list[Triple] = field(default_factory=list)

    @property
    def precision(self) -> float:
        accepted = self.true_positives + len(self.false_positives)
        return self.true_positives / accepted if accepted else 1.0

    @property
    def recall(self) -> float:
        right = self.true_positives + len(self.false_negatives)
        return self.true_positives / right if right else 1.0

    def __str__(self) -> str:
        n = self.true_positives + self.true_negatives + len(self.false_positives) + len(self.false_negatives)
        return (
            f"n={n:3}  precision {self.precision:.3f}  recall {self.recall:.3f}  "
            f"wrongly accepted {len(self.false_positives)}, wrongly refused {len(self.false_negatives)}"
        )


def load(family: str) -> Iterator[Triple]:
    """The triples of a family."""
    for line in (FOLDER / f"{family}.jsonl").read_text(encoding="utf-8").splitlines():
        triple: Triple = json.loads(line)
        yield triple


def measure(family: str) -> dict[str, Quality]:
    """The quality of each grader on those triples of a family that it applies to."""
    measured: dict[str, Quality] = defaultdict(Quality)
    for triple in load(family):
        for grader in triple["graders"]:
            quality = measured[grader]
            verdict = grade(triple["completion"], triple["answer"], grader, EXTRACTION)
            match triple["correct"], verdict.correct:
                case True, True:
                    quality.true_positives += 1
                case False, False:
                    quality.true_negatives += 1
                case True, False:
                    quality.false_negatives.append(triple)
                case _:
                    quality.false_positives.append(triple)
    return measured


def main() -> None:
    for family in FAMILIES:
        for grader, quality in measure(family).items():
            decides = " (decides)" if grader == DECIDING[family] else ""
            print(f"{family:8} {grader + decides:18} {quality}")
            if decides:
                for triple in (*quality.false_positives, *quality.false_negatives):
                    print(f"    {triple['form']}: {triple['completion']!r} for {triple['answer']!r}")


if __name__ == "__main__":
    main()
