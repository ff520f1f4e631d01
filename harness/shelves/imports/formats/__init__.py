"""Files of other tools. Each is a `Format(...)` at the top level of a file of this folder, or of a plug-in."""
