"""The job manager's side: the job master, and the coordinators of a job's sources."""
