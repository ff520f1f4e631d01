"""Where lm-eval's verdict and ours differ on the stored completions, by design: form -> why.

Our graders are not bent to lm-eval's; who wants its verdicts names its filters (`evals.shelves.lm_eval.grading`).
"""

from __future__ import annotations

from tests.evals.shelves.lm_eval.parity import Comparison

FIRST_HASH = "the filter takes the first ####, we the last"
NUMBER_ONLY = "the filter wants a bare number one space after ####"
AS_TEXT = "the metric compares text, we numbers"
ASCII_ONLY = "the filter knows the ASCII forms of digits, minus and space alone"
THOUGHT = "the filter reads thoughts; for us one that never ends holds no answer"
LAST_RUN = "the filter takes the last run of digits and punctuation, be it no number"
LAKHS = "commas that group otherwise than by thousands make no number for us"
ONE_ANSWER = "the filter takes the number and leaves the words; for us there are words, or two answers"
WHOLE_TEXT = "without a box the task compares what is between the first and the last $, or the whole text"
INEQUALITY = "for us an inequality in one variable is the interval that it describes"
PERCENT = "for us a percentage is its fraction too; with antlr 4.11 math-verify reads no \\%"
BOX_FORMS = "the task reads one closed \\boxed{}, its last mention"

ONLY_WE_ACCEPT = "only we accept"
ONLY_LM_EVAL_ACCEPTS = "only lm-eval accepts"

BY_DESIGN: dict[Comparison, dict[str, dict[str, str]]] = {
    Comparison("gsm8k", "strict-match", "exact_match", "gsm8k", "numeric"): {
        ONLY_WE_ACCEPT: {
            "quoted example before the answer": FIRST_HASH,
            "wrong first, corrected": FIRST_HASH,
            "thought with another answer": FIRST_HASH,
            "hash, dollars with cents": NUMBER_ONLY,
            "hash, dollars": NUMBER_ONLY,
            "hash, escaped dollars": NUMBER_ONLY,
            "thousands, dollars": NUMBER_ONLY,
            "no space": NUMBER_ONLY,
            "two spaces": NUMBER_ONLY,
            "bold number": NUMBER_ONLY,
            "equals sign": NUMBER_ONLY,
            "plus sign": NUMBER_ONLY,
            "hash, cents": AS_TEXT,
            "thousands, one decimal": AS_TEXT,
            "millions in words": AS_TEXT,
            "leading zero": AS_TEXT,
            "working on the line": "the filter takes the first number of the line, we what is right of the last =",
            "negative, typographic minus": ASCII_ONLY,
            "full-width digits": ASCII_ONLY,
            "no-break space": ASCII_ONLY,
        },
        ONLY_LM_EVAL_ACCEPTS: {
            "run-on with a second hash": FIRST_HASH,
            "lakhs": LAKHS,
            "comma": ONE_ANSWER,
            "bold line": ONE_ANSWER,
            "two answers": ONE_ANSWER,
            "thought that never ends": THOUGHT,
        },
    },
    Comparison("gsm8k", "flexible-extract", "exact_match", "last_number", "numeric"): {
        ONLY_WE_ACCEPT: {
            "dollars with cents": AS_TEXT,
            "hash, dollars with cents": AS_TEXT,
            "hash, cents": AS_TEXT,
            "thousands, one decimal": AS_TEXT,
            "leading zero": AS_TEXT,
            "scientific": AS_TEXT,
            "fraction": AS_TEXT,
            "ellipsis": LAST_RUN,
            "sentence that ends in an ellipsis": LAST_RUN,
            "lone commas": LAST_RUN,
            "subtraction at the end": "the filter reads the minus between two terms as a sign",
            "negative, typographic minus": ASCII_ONLY,
            "full-width digits": ASCII_ONLY,
        },
        ONLY_LM_EVAL_ACCEPTS: {"lakhs": LAKHS, "thought that never ends": THOUGHT},
    },
    Comparison("aime24", "none", "exact_match", "chain", "numeric"): {
        ONLY_WE_ACCEPT: {
            "dollars twice": WHOLE_TEXT,
            "number in a sentence": WHOLE_TEXT,
            "answer colon": WHOLE_TEXT,
            "box with a space and full stop": BOX_FORMS,
            "box mentioned first": BOX_FORMS,
            "box mentioned last, without braces": BOX_FORMS,
            "fbox": BOX_FORMS,
            "box, long name": AS_TEXT,
            "leading zero": AS_TEXT,
            "decimal": AS_TEXT,
            "full stop inside": AS_TEXT,
            "bold inside": AS_TEXT,
            "unit without a space": AS_TEXT,
            "fraction": AS_TEXT,
            "full-width digits": ASCII_ONLY,
        },
        ONLY_LM_EVAL_ACCEPTS: {"two values with words": ONE_ANSWER, "thought that never ends": THOUGHT},
    },
    Comparison("minerva_math500", "none", "math_verify", "chain", "math"): {
        ONLY_WE_ACCEPT: {
            "run-on with a second answer": 'math-verify prefers the last "final answer is" to a box, we the box',
            "interval as inequality": INEQUALITY,
            "percent for a fraction": PERCENT,
        },
        ONLY_LM_EVAL_ACCEPTS: {
            "box wrong, sentence right": 'math-verify prefers the last "final answer is" to a box, we the box',
            "thought that never ends": THOUGHT,
        },
    },
    Comparison("minerva_math500", "none", "exact_match", "lm_eval_minerva", "math"): {
        ONLY_WE_ACCEPT: {
            "left and right": "sympy reads no intervals, so the metric compares their text",
            "bmatrix": "sympy reads no matrices, so the metric compares their text",
            "interval as inequality": INEQUALITY,
            "percent for a fraction": PERCENT,
        },
        ONLY_LM_EVAL_ACCEPTS: {},
    },
}
