"""Sources read in micro-batches that can be repeated exactly, for engines that are not ours.

The driver plans each batch (:mod:`.planner`), subtasks read it (:mod:`.reading`), and what they have read is in
side files (:mod:`.sidefiles`), from which the next batch goes on and an earlier one is repeated.
"""
