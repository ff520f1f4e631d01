"""Shelves: folders that the rest of `reports` never imports (`harness.plugins.on_shelves`)."""
