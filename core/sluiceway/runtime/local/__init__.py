"""Local engine: job master and task manager in one thread of this process."""
