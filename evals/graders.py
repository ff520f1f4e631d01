"""Look-up of graders by name, and grading of one completion. `evals.evaluate.grade_all` grades many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from evals.errors import EvalError
from evals.grading import OWN, Grader, OwnComparison, Submission, Verdict
from evals.yaml_file import ENDINGS
from harness.plugins import Kind

if TYPE_CHECKING:
    from evals.grading.asked_model import Asking

GRADERS: Kind[Grader] = Kind(
    "grader",
    lambda thing: isinstance(thing, Grader),
    "evals.grading",
    "bench ls graders",
    summary_of=lambda grader: grader.meaning,
    besides={"file.yaml": "a judge of your own, which asks a model; its path"},
)


def get_grader(name: str) -> Grader:
    """Return the grader with this name, or the judge in the YAML file at this path (see `plugins.user_file`).

    Raises UnknownNameError, or EvalError if the file is missing or faulty.
    """
    if name.endswith(ENDINGS):
        from evals.grading.asked_model import JUDGES, ONE

        judge: Grader = JUDGES.find(ONE).read(name)
        return judge
    return GRADERS.find(name)


def runs_code(grader: str | None) -> bool:
    """Return whether a grader runs programs. False for None. Raises as `get_grader`."""
    return grader is not None and get_grader(grader).runs_code


def account_of(graders: Iterable[str | None]) -> dict[str, Any]:
    """Return what a launch's provenance records about how these graders grade.

    Raises as `get_grader`, and EvalError if programs cannot be sandboxed.
    """
    found: dict[str, Any] = {}
    for grader in graders:
        found |= {} if grader is None else get_grader(grader).account()
    return found


def judge_of(grader: str | None) -> Asking | None:
    """Return the grader with this name if it is a judge, else None. Raises as `get_grader`."""
    found = None if grader is None else get_grader(grader)
    return cast("Asking", found) if found is not None and found.asks_model else None


def grader_version(name: str) -> int | str:
    """Return the value that represents a grader in a hash.

    For a shipped grader it is the version, for a plug-in the digest of its source. For a judge it is the digest of
    those fields of its file that can change a verdict. Raises as `get_grader`.
    """
    source = None if name.endswith(ENDINGS) else GRADERS.source(name)
    return get_grader(name).version if source is None else source.digest


def applicable_graders(answer: str) -> list[str]:
    """Return the sorted names of the graders that can compare an extracted answer with this reference.

    A reference that consists of unit tests has none.
    """
    fitting = {name: grader for name, grader in GRADERS.all().items() if grader.can_compare_with(answer)}
    if any(grader.runs_code for grader in fitting.values()):
        return []
    return sorted(name for name, grader in fitting.items() if not grader.reads_whole)


def require_gradable(answer: str, grader: str, own: OwnComparison | None = None) -> None:
    """Check, before there is any completion, that the grader can compare with this reference. Starts no process.

    Raises as `get_grader`, and EvalError if the reference is faulty, or empty although the grader needs one.
    """
    found = get_grader(grader)
    if not answer and found.needs_answer:
        raise EvalError("evals.no_answer_to_compare")
    if (grader != OWN or own is None) and (fault := found.fault(answer)) is not None:
        raise EvalError("evals.reference_not_gradable", fault=fault)


def grade(
    text: str,
    answer: str,
    grader: str | Grader = "math",
    extract: str | None = None,
    own: OwnComparison | None = None,
    problem: str = "",
) -> Verdict:
    """Grade whether a completion gives the reference answer.

    text: the completion.
    answer: the reference, without its derivation.

    grader: `exact` compares text. `numeric` compares numbers exactly, without units (see `numeric.parse_number`).
    `choice` compares the letters of a multiple choice (see `choice.parse_choice`). `math` accepts what these accept and
    passes the rest to math-verify, in a process with limits on time and memory (see `math.compare_math`). `own` uses
    the problem's own comparison. Plug-ins may add others. Passing the grader itself instead of its name saves the
    look-up.

    extract: `boxed`, `answer_tag` (`<answer>`), `gsm8k` (`####`), `hash` (after the last `#`), `last_number`, `choice`,
    `code` (the last fenced block), or None for `chain`. `chain` takes what follows `</think>`, and there the last box,
    else `####`, else "answer is", else the last number.
    own: the problem's own comparison (`Problem.own_comparison`), for the grader `own`.
    problem: the problem statement, for a judge.

    Raises UnknownNameError for an unknown grader or extraction, and EvalError if the grader cannot compare with the
    reference: `numeric` with one that is not a number, `choice` with one that is not a letter, `own` for a problem
    without a comparison.
    """
    from evals.grading.extract import extract_answer

    submission = Submission(problem, answer, text, extract_answer(text, extract or "chain"), own)
    return (get_grader(grader) if isinstance(grader, str) else grader).verdicts([submission])[0]


def rule_beside(grader: Grader, own: str | None) -> Grader | None:
    """Return the rule that grades in addition to a judge: the task's own grader, whose name is `own`.

    None if `grader` is not a judge, or if the task's own grader reads whole submissions too.
    """
    rule = None if own is None or not grader.asks_model else get_grader(own)
    return None if rule is None or rule.reads_whole else rule
