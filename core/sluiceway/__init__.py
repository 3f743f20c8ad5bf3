"""Sluiceway: stateful stream processing for Python."""
