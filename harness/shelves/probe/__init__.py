"""The gradient probe: bias and variance of objectives' gradient estimates at frozen weights."""
