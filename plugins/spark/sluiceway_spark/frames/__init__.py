"""Pipelines between two DataFrames of the user's session: ``transform``, batch and streaming."""
