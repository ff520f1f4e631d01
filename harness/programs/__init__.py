"""Bench's own programs that train a cell by the contract of `harness.trainers`, each in processes of its own.

A trainer in `harness/trainers/` starts each of them. The code that runs a cell never imports them.
"""
