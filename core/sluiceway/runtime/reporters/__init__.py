"""Built-in metrics reporters: log and JSON lines."""
