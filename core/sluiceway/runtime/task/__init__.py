"""A task: one attempt of one subtask, from its input to its outputs, as a tasklet."""
