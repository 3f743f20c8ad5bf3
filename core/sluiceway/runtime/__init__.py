"""What runs a job: tasks, the worker's loop, the job master, and the engine that puts them together."""
