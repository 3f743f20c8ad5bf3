"""Windows at work."""
