"""Helpers that every floor uses and that know nothing of streams."""
