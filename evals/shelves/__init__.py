"""Shelves: folders that the rest of `evals` never imports (`harness.plugins.on_shelves`)."""
