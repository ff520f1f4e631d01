"""Search: Optuna proposes settings, and cells measure them."""
