"""Programs of ours that train a cell by the contract of `harness.trainers`, each in processes of its own.

A trainer of `harness/trainers/` starts one. They are never imported by what runs a cell.
"""
