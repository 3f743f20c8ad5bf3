"""Operators of windows."""
