from __future__ import annotations

import subprocess
import sys

import pytest

import evals

HEAVY = {"torch", "transformers", "datasets", "math_verify", "sympy", "numpy", "scipy", "pyarrow", "mlflow"}


def imported_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {module.partition(".")[0] for module in result.stdout.split()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "import evals",
        "from evals import task_names; task_names()",
        "from evals import get_task; get_task('gsm8k').split('test').fingerprint",
        "from evals.pairs import parse_pair_source; parse_pair_source('hub:a/b@c', 'train').fingerprint",
        "from evals.metrics import metrics_for; metrics_for([1])",
        "from evals import get_template; get_template('boxed')",
        "from evals import grade; grade('\\\\boxed{1/2}', '0.5')",
    ],
)
def test_nothing_heavy_is_imported(statement):
    assert imported_by(statement).isdisjoint(HEAVY)


def test_public_names_resolve():
    for name in evals.__all__:
        assert getattr(evals, name).__name__ == name
    with pytest.raises(AttributeError):
        evals.pas_at_k  # noqa: B018
