"""The figure of over-optimisation: the truth under a learned reward."""
