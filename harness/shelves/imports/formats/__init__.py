"""File formats of other tools: each an `ImportFormat(...)` at the top level of a file here, or of a plug-in."""
