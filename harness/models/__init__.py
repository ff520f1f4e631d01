"""Language models: loading and saving, chat templates, adapters, the starting weights of cells, and the tiny model."""
