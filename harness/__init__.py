"""The command line, and the code that plans, runs and records sweeps."""

OUR_PACKAGES = ("algorithms", "evals", "harness", "reports", "sweeps")
"""The packages of this project, all in the same folder."""
