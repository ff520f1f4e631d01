"""Memorised problems: `bench eval --memorisation`."""
