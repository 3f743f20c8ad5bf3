"""Tasklet loop: one thread that steps tasklets, with helpers for blocking calls and coroutines."""
