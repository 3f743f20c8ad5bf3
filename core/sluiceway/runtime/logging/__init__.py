"""Log records: fields of the task that logged, formats, and the set-up of a run."""
