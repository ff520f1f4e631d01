"""The sections of a run spec, a file each."""
