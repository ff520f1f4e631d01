"""Figures of reflection words: over training, and in the plane of the input embeddings."""
