"""Where jobs run: a pool of worker processes on this machine."""
