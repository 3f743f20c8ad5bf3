"""Definition of a step in its state: what decides which rows and aggregates are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sluiceway.columns.state_names import DEFINITION
from sluiceway.errors import IncompatibleStateError, StateError
from sluiceway.state import KeyedStateBackend, ValueStateDescriptor

__all__ = ["DEFINITION_STATE", "SavedDefinition", "cannot_restore", "changed_key", "reading"]

DEFINITION_STATE: Final = ValueStateDescriptor(DEFINITION, str)
"""Of each key group: the definition, as JSON."""


class SavedDefinition:
    """Definition of a step in its state, by key group.

    State alone does not say what is missing from it: rows that a wider interval or a longer window needs went when
    the narrower one was over. So a restored step compares definitions, also where no rows are left.

    Args:
        backend: the state of the step.
        group_keys: the key of each group's definition.
        own: the key groups of the subtask.
        now: the definition, of values that JSON has.
    """

    def __init__(
        self, backend: KeyedStateBackend, group_keys: Sequence[int], own: range, now: Mapping[str, Any]
    ) -> None:
        self._entries = backend.table(DEFINITION_STATE).entries()
        self._keys = [group_keys[group] for group in own]
        self._now = json.dumps(now, sort_keys=True)

    def earlier(self) -> Iterator[dict[str, Any]]:
        """Return the definitions that the state has and that differ from the one now."""
        for text in sorted({text for key in self._keys if (text := self._entries.get(key)) is not None}):
            if text != self._now:
                yield json.loads(text)

    def save(self) -> None:
        """Write the definition where the state does not have it."""
        for key in self._keys:
            if self._entries.get(key) != self._now:
                self._entries[key] = self._now


@contextmanager
def reading(step: str, state: str = "") -> Iterator[None]:
    """Raise StateError, with step and state, for the ValueError of damaged bytes; no state: that of kept rows."""
    try:
        yield
    except ValueError as error:  # pa.ArrowInvalid is one
        raise StateError(
            f"{f'state {state!r}' if state else 'the state of rows'} of step {step!r} cannot be read: {error}. "
            "Start from another checkpoint"
        ) from error


def cannot_restore(step: str, problem: str) -> IncompatibleStateError:
    """Return the error of a step whose definition has changed in a way that its state does not allow."""
    return IncompatibleStateError(
        f"step {step!r} cannot restore its snapshot: {problem}. Undo the change, or give the step another uid, so "
        "that it begins without state"
    )


def changed_key(old: Mapping[str, Any], now: Mapping[str, Any], *names: str) -> str:
    """Return the problem of other key columns; empty: they are the same."""
    for name in names:
        if old[name] != now[name]:
            return f"its {name} was {', '.join(old[name])}, and is {', '.join(now[name])} now"
    return ""
