"""The figure of over-optimisation: the true reward under a learned reward."""
