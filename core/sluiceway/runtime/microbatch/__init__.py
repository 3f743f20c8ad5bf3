"""Repeatable micro-batches for engines that drive the batches: planning, reading and writing.

The driver plans each batch (:mod:`.planner`), subtasks read it (:mod:`.batch_reader`) and record in the batch log
(:mod:`.batch_log`) the polls they made and their positions. The log is the start of the next batch, and makes a
retried batch read the same records.
"""
