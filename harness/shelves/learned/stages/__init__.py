"""The stages that train a reward model and a pairwise judge, and that choose by the former."""
