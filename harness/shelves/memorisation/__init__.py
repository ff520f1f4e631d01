"""What a model knows by heart: `bench eval --memorisation`."""
