from __future__ import annotations

import pytest

from evals.errors import UnknownNameError
from evals.prompts import Template, get_template

HOSTILE = "Let $S = \\{1, {2}\\}$. {problem} {0} %s \\boxed{}"


def test_plain_is_the_problem_alone():
    assert get_template("plain").render(HOSTILE) == HOSTILE


def test_question_answer():
    assert get_template("question_answer").render("1+1?") == "Question: 1+1?\nAnswer:"


def test_boxed_is_one_user_message():
    assert get_template("boxed").render(HOSTILE) == [
        {
            "role": "user",
            "content": HOSTILE + "\nPlease reason step by step, and put your final answer within \\boxed{}.",
        }
    ]


def test_qwen_math_tells_what_to_do_in_the_system_message():
    assert get_template("qwen_math").render(HOSTILE) == [
        {"role": "system", "content": "Please reason step by step, and put your final answer within \\boxed{}."},
        {"role": "user", "content": HOSTILE},
    ]


def test_a_system_message_comes_first():
    template = Template("x", version=1, text="{problem}!", system="Be brief.", chat=True)
    assert template.render("1+1") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1!"},
    ]


def test_unknown_template_names_the_nearest():
    with pytest.raises(UnknownNameError, match="'boxd'; did you mean 'boxed'"):
        get_template("boxd")
