"""Entry points of processes: worker, job manager, and the job manager in the foreground."""
