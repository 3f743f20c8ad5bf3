"""Stages of a Spark job: how they are built from the plan of a pipeline, and what their tasks run."""
