"""Language models: loading and saving them, their chat templates, adapters, the starting weights of cells, and the
built-in tiny one."""
