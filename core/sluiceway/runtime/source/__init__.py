"""Sources that need a thread of their own."""
