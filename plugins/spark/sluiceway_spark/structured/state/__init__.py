"""Keyed state in Spark's state store: cache of subtasks per Python worker, log of changes, export."""
