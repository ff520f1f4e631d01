"""Language models: where they come from, how they are loaded and saved, the built-in tiny one and the cold start."""
