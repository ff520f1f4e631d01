from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from harness.tracking.run import MAX_PARAM_LENGTH, flat_params, mlflow_name, score_points, step_points


def test_names() -> None:
    assert mlflow_name("eval/sums/pass@1") == "eval/sums/pass_at_1"
    assert mlflow_name("eval/lm:gsm8k, 5 shots/avg@n") == "eval/lm_gsm8k__5_shots/avg_at_n"
    assert mlflow_name("train/kl/k1_old-x.y") == "train/kl/k1_old-x.y"


@given(st.text(st.characters(exclude_characters="/"), min_size=1).filter(lambda text: text not in (".", "..")))
def test_mlflow_accepts_every_name(text: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(mlflow_name(f"train/{text}"))


def test_what_a_step_does_not_have_is_a_gap() -> None:
    row = {"step": 7, "loss": 0, "reward/mean": -1.5, "gap": None, "text": "x", "list": [1]}
    row |= {"nan": float("nan"), "inf": float("inf")}
    assert list(step_points(row, 99)) == [("train/loss", 7, 0.0, 99), ("train/reward/mean", 7, -1.5, 99)]


def test_scores() -> None:
    row = {"step": 9, "final": False, "task": "sums", "generated_tokens": 5, "metrics": {"pass@2": 0.25, "x": None}}
    curve = ("eval/sums/pass_at_2", 9, 0.25, None)
    assert list(score_points(row)) == [curve]
    assert list(score_points(row | {"final": True})) == [curve, ("eval/final/sums/pass_at_2", 9, 0.25, None)]


def test_params() -> None:
    spec = {"a": {"b": {"c": 1e-4}, "empty": {}}, "off": False, "none": None, "text": "none", "k": [1, 2], "x@y": 1}
    assert flat_params(spec) == {
        "a.b.c": "0.0001",
        "a.empty": "{}",
        "off": "false",
        "none": "null",
        "text": "none",
        "k": "[1, 2]",
        "x_at_y": "1",
    }


def test_a_long_param_is_cut_and_says_so() -> None:
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

    assert MAX_PARAM_LENGTH == MAX_PARAM_VAL_LENGTH
    assert flat_params({"fits": "x" * MAX_PARAM_LENGTH})["fits"] == "x" * MAX_PARAM_LENGTH
    numbers = list(range(3000))
    value = flat_params({"numbers": numbers})["numbers"]
    assert len(value) == MAX_PARAM_LENGTH
    assert value.endswith(f"... [{len(json.dumps(numbers))} characters; all of them in spec.json]")
