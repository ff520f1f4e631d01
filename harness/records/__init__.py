"""The records that a sweep leaves on disk, for reports and the MLflow mirror. Layout: docs/reference/records.md."""

from harness.records.cell import CellRecord, cell_directory_name
from harness.records.rows import CellState
from harness.records.sweep import SweepRecord, read_sweep

__all__ = ["CellRecord", "CellState", "SweepRecord", "cell_directory_name", "read_sweep"]
