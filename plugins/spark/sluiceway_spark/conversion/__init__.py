"""Conversion between records, Arrow batches and Spark's schemas."""
