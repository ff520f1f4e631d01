"""How a cell learns: what one training step does with the policy, by where its examples come from."""
