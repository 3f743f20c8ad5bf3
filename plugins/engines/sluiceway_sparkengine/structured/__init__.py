"""Pipelines as Spark's own jobs: subtasks of ours, driven by hand inside Spark's Python workers."""
