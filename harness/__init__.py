"""Plans, runs and records sweeps; the command line."""

OUR_PACKAGES = ("algorithms", "evals", "harness", "reports", "sweeps")
"""All that the project consists of. They stand beside each other."""
