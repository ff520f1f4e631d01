r"""The answers that lm-eval 0.4.13 extracts, so that stored text yields its verdicts, sample by sample.

With the grader `exact`, the first three give the verdicts of lm-eval's `exact_match` if references are whole numbers.
They deliberately keep lm-eval's traps. To find out whether an answer is correct, use `chain` instead.
* gsm8k, filter `strict-match`: the first `#### <number>`. An example that the model quotes first wins over its own
  answer (EleutherAI/lm-evaluation-harness#3438). `####18` and `#### $18` are not answers.
* gsm8k, filter `flexible-extract`: the last run of digits, `$`, `.` and `,`. Whatever follows the answer wins, be it a
  number or `...` (sgl-project/sglang#29933). For both filters, `29.00` is not 29
  (EleutherAI/lm-evaluation-harness#3214).
* aime24, aime25: the last box, else the text between the first and the last `$`, else the whole text. `025` is not 25,
  and `\fbox{25}` is not a box.
* minerva_math500: the sentence of its four examples; nothing else is an answer. lm-eval then compares by sympy, so here
  only `math` comes close.

Source: `lm_eval/tasks/{gsm8k,aime,minerva_math}` of that version.
"""

from __future__ import annotations

import re

from evals.grading import bare, normalise
from evals.grading.extract import Extraction

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_FINAL_ANSWER = re.compile(r"Final Answer: The final answer is(.*?). I hope it is correct.")
_UNIT = "\\text{ "


def extract_gsm8k_strict(text: str) -> str | None:
    """Return the first `#### <number>`, without `,` and the full stop."""
    found = _STRICT.search(text)
    return _plain(found[1]) if found else None


def extract_gsm8k_flexible(text: str) -> str | None:
    """Return the last run that looks like a number, without `,`, `$` and the full stop."""
    runs = _FLEXIBLE.findall(text)
    return _plain(runs[-1]) if runs else None


def _plain(number: str) -> str:
    return number.replace(",", "").replace("$", "").removesuffix(".")


def extract_aime(text: str) -> str | None:
    """Return the last box, else the text from the first `$` to the last, else all of it; without irrelevant mark-up."""
    answer = _last_box(text)
    if answer is None:
        first, last = text.find("$"), text.rfind("$")
        answer = text[first + 1 : last] if first < last else text
    answer = _without(answer, "\n", "\\!").replace("\\\\", "\\")
    answer = _without(answer, "\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")
    answer, _, unit = answer.partition(_UNIT)
    # lm-eval splits at the unit, and fails if there is a second one.
    if _UNIT in unit:
        return None
    answer = answer.replace("\\%", "")
    name, equals, value = answer.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        answer = value
    return answer.replace(" ", "")


def _without(text: str, *marks: str) -> str:
    for mark in marks:
        text = text.replace(mark, "")
    return text


def _last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}`.

    If `\boxed ` occurs anywhere, return the text after its last occurrence up to a `$` instead.
    """
    _, spaced, after = text.rpartition("\\boxed ")
    if spaced:
        return after.partition("$")[0]
    _, boxed, after = text.rpartition("\\boxed")
    if not boxed or not after.startswith("{"):
        return None
    depth = 0
    for end, character in enumerate(after):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return after[1:end]
    return None


def extract_minerva(text: str) -> str | None:
    """Return what the first "Final Answer: The final answer is ... . I hope it is correct." says.

    The end of the sentence may be missing.
    """
    # Append the end of the sentence, so that a completion without it has an answer too.
    found = _FINAL_ANSWER.search(text + "I hope it is correct.")
    return bare(normalise(found[1])) if found else None


STRICT = Extraction("lm_eval_gsm8k_strict", extract_gsm8k_strict, "all")
FLEXIBLE = Extraction("lm_eval_gsm8k_flexible", extract_gsm8k_flexible, "all")
AIME = Extraction("lm_eval_aime", extract_aime, "all")
MINERVA = Extraction("lm_eval_minerva", extract_minerva, "all")
