"""From a sweep file to cells: layering, gate, guard, warnings, cost. Imports neither torch nor mlflow."""

from harness.plan.filing import PlannedCell
from harness.plan.plan import Plan, make_plan

__all__ = ["Plan", "PlannedCell", "make_plan"]
