"""Engines sample completions from a model's weights.

`base` defines what every engine must do, and creates the engine that a spec names. An engine is a folder or module here
with an `EngineBackend` (`harness.config.engine`) at its top level. Listing the engines imports this level, so it must
import neither torch nor the library that the engine runs on.
"""
