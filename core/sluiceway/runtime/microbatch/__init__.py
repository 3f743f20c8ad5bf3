"""Micro-batches that can be repeated exactly: planning, reading and writing, for engines that drive the batches.

The driver plans each batch (:mod:`.planner`), subtasks read it (:mod:`.batch_reader`), and what they have read is
in the batch log (:mod:`.batch_log`), from which the next batch goes on and an earlier one is repeated.
"""
