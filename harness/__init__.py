"""The command line, and the code that plans, runs and records sweeps."""

OUR_PACKAGES = ("algorithms", "evals", "harness", "reports", "sweeps")
"""The packages of the project, which are next to each other."""
