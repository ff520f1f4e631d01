"""Jobs on a Ray cluster: `--executor ray`."""
