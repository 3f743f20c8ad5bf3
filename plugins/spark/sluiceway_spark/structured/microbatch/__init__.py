"""Micro-batches of a streaming query: planned in the driver, read and processed in Python workers."""
