"""Pipelines as Spark jobs: stepped tasks inside Spark's Python workers."""
