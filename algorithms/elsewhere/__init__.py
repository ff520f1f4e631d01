"""Other trainers' names for our knobs, one file per trainer: a shelf of `algorithms.dialects`."""
