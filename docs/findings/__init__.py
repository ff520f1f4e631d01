"""The findings: what the literature claims, asked anew with the shipped sweeps. `python -m docs.findings` makes all.

NN_name.yaml    one claim: who makes it, the runs that ask about it, what it predicts of them; and, written by hand
                after the runs, how to read the answer
records/        the kept reports of the runs, from which the pages are made (see `reports.page.kept`), and the
                laws fitted to logs that others published
NN_name.md, README.md, method.md    the pages, made; never edited
"""
