"""The task manager: the tasks of one job in one worker, and where their snapshots go."""
