"""Judges: graders that ask a model, of one completion or of two. Each is a YAML file of the user's own."""
