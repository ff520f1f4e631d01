"""Two things of a kind that only tests have."""
