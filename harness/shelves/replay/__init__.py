"""Replay: what other objectives would do with the tokens in a cell's stored rollouts. Trains nothing."""
