"""Operators of streams in columns."""
