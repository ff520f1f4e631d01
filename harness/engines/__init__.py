"""Engines draw completions from a model's weights.

`base` says what every engine promises and makes the one that a spec names. An engine is a folder or a module here
with an `EngineBackend` (`harness.config.engine`) at its top level, which is imported to list the engines and so imports
neither torch nor the library that it runs on.
"""
