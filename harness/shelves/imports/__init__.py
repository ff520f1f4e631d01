"""Results made elsewhere: what other tools wrote becomes records, for reports, verdicts and `bench compare`.

sources    which files there are, and the arm and the seed that their paths say
formats    a file for each tool: what it wrote, as runs
cells      the runs of each arm and seed put together; what is partial or contradictory is refused
gate       arms differ in declared settings only
records    the records, like those of `bench run`
"""
