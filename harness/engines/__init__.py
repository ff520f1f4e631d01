"""Engines sample completions from a model's weights.

`base` defines what every engine promises, and creates the engine that a spec names. An engine is a folder or a module
here with an `EngineBackend` (`harness.config.engine`) at its top level. That level is imported to list the engines, so
it imports neither torch nor the library that the engine runs on.
"""
