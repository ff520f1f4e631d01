"""Tasks of the package reasoning-gym: `reasoning_gym:<name>`."""
