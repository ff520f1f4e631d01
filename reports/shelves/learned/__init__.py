"""What a learned reward makes of the truth: the figure of over-optimisation."""
