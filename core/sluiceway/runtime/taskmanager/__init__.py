"""Task manager: the tasks of one job in one worker, and the writers of their snapshots."""
