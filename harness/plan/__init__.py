"""From a sweep file to cells: layers, gate, guard, warnings, cost. This package imports neither torch nor mlflow."""

from harness.plan.filing import PlannedCell
from harness.plan.plan import Plan, make_plan

__all__ = ["Plan", "PlannedCell", "make_plan"]
