"""State as data: what is in a checkpoint or savepoint as rows and tables, and savepoints made of tables."""

from sluiceway.api.statedata.building import SavepointWriter, write
from sluiceway.api.statedata.editing import SavepointEditor, edit
from sluiceway.api.statedata.rows import StateRows, read_state
from sluiceway.api.statedata.saved import SavedOperator, SavedState, SavedTable, read

__all__ = [
    "SavedOperator",
    "SavedState",
    "SavedTable",
    "SavepointEditor",
    "SavepointWriter",
    "StateRows",
    "edit",
    "read",
    "read_state",
    "write",
]
