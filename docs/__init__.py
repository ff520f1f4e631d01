"""The documentation: pages, what fills in their tables, and the findings with what makes them."""
