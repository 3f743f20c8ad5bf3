"""Execution of jobs: tasks, the worker's loop, the job master, and the engine that connects them."""
