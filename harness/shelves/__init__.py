"""Shelves: folders that the rest of bench never imports.

Each adds what it has to the rooms that its modules are named after (`harness.plugins.on_shelves`).
"""
