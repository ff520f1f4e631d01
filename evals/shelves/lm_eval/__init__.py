"""lm-eval: its tasks (`lm_eval:<name>`), its own runs (`bench eval --lm-eval`), and what its filters extract."""
