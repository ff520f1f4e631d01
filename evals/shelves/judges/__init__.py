"""Judges: graders that ask a model about one completion or about two. Each is a YAML file of the user's own."""
