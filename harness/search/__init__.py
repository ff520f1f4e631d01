"""Search: Optuna proposes settings, cells measure them."""
