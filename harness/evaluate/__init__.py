"""`bench eval`: evaluate any model on any task. Each sample is recorded once."""
