"""Judges: lending graders a messenger to the models that they ask."""
