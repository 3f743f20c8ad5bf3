"""Aggregates of columns: their accumulators as arrays, and the slices and sessions that hold them.

The modules are named by what they hold; none is imported before a job aggregates columns.
"""
