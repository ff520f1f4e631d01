"""Tasksets of the package verifiers: `verifiers:<taskset>`."""
