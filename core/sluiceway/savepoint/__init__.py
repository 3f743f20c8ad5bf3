"""State as tables: reading checkpoints and savepoints, writing and editing savepoints."""

from sluiceway.savepoint.editor import SavepointEditor, edit
from sluiceway.savepoint.reader import SavedOperator, SavedState, SavedTable, read
from sluiceway.savepoint.rows import StateRows, read_state
from sluiceway.savepoint.sizes import StateSize, state_sizes
from sluiceway.savepoint.writer import SavepointWriter, write

__all__ = [
    "SavedOperator",
    "SavedState",
    "SavedTable",
    "SavepointEditor",
    "SavepointWriter",
    "StateRows",
    "StateSize",
    "edit",
    "read",
    "read_state",
    "state_sizes",
    "write",
]
