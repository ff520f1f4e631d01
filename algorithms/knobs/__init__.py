"""Groups of knobs: the parts of an `Objective` that are themselves made of knobs, a file each."""
