"""What a few papers ask and most sweeps do not: fitted laws, reflection words, thinking budgets."""
