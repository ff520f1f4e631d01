"""Replay: what objectives would have done with the very same tokens, from a cell's stored rollouts. Trains nothing."""
