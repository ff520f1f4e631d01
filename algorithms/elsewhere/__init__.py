"""Other trainers' names for our knobs, a trainer a file: a shelf of `algorithms.dialects`."""
