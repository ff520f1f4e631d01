"""`bench ui`: the pages of a home in a browser."""
