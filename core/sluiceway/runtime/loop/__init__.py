"""The tasklet loop: one thread that steps tasklets, and what may block or await beside it."""
