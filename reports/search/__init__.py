"""The report of a search, drawn from study.json alone."""
