"""Names of the keyed state of steps in columns. Imports no pyarrow."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BY_KEY",
    "DEFINITION",
    "KEYS",
    "LATEST",
    "LATEST_KEYS",
    "LEFT",
    "LEFT_WAITING",
    "OVER_KEYS",
    "OVER_RECENT",
    "OVER_WAITING",
    "PROGRESS",
    "PROGRESS_OF_ROWS",
    "RIGHT",
    "RIGHT_WAITING",
    "SESSIONS",
    "SLICES",
    "kind_of_state",
]

SLICES: Final = "slices in columns"
KEYS: Final = "keys in columns"
SESSIONS: Final = "sessions in columns"
DEFINITION: Final = "definition in columns"
PROGRESS: Final = "progress in columns"
PROGRESS_OF_ROWS: Final = "progress of rows in columns"
LEFT: Final = "interval join left in columns"
RIGHT: Final = "interval join right in columns"
LEFT_WAITING: Final = "as-of join left in columns"
RIGHT_WAITING: Final = "as-of join right in columns"
LATEST: Final = "as-of join latest in columns"
OVER_WAITING: Final = "over waiting in columns"
OVER_RECENT: Final = "over recent in columns"
LATEST_KEYS: Final = "as-of join latest keys in columns"
OVER_KEYS: Final = "over keys in columns"

BY_KEY: Final = {KEYS: SLICES, SESSIONS: SLICES, LATEST_KEYS: LATEST, OVER_KEYS: OVER_RECENT}
"""States that have what does not go into memory, each with the state that has the rest.

Of these the value of a key is bytes, in the void namespace; others have a block of rows for each key group.
"""

_KINDS: Final = {
    **dict.fromkeys((SLICES, KEYS, SESSIONS), "aggregates"),
    **dict.fromkeys(
        (LEFT, RIGHT, LEFT_WAITING, RIGHT_WAITING, LATEST, OVER_WAITING, OVER_RECENT, LATEST_KEYS, OVER_KEYS),
        "rows",
    ),
    **dict.fromkeys((PROGRESS, PROGRESS_OF_ROWS), "progress"),
    DEFINITION: "definition",
}


def kind_of_state(step: str, name: str) -> str:
    """Return the kind of a state in columns: ``aggregates``, ``rows``, ``progress``, ``definition``; empty: none.

    Args:
        step: kind of the step: a function of the user's may have named its state like one of these.
        name: name of the state.
    """
    return _KINDS.get(name, "") if step.startswith("columns") else ""
