"""Results made elsewhere: the output of other tools becomes records, for reports, verdicts and `bench compare`.

sources    which files there are, and the arm and the seed in their paths
formats    one file per tool: its output, as runs
cells      the runs of each arm and seed, merged; partial or contradictory ones are refused
gate       arms differ in declared settings only
records    the records, like those of `bench run`
"""
