"""Side output for late rows: a setting of windows of columns and of aggregates over last rows."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.functions import OutputTag

if TYPE_CHECKING:
    from typing import Self

__all__ = ["HasLateRows"]


class HasLateRows:
    """Base of steps in the making whose late rows may go to a side output. Every setting returns a new object."""

    _late_tag: OutputTag[Any] | None = None

    def side_output_late_data(self, tag: OutputTag[Any]) -> Self:
        """Send rows that are too late to a side output, which ``get_side_output(tag)`` of the result returns.

        Without it they are dropped and counted by the metric ``numLateRecordsDropped``.

        Raises:
            TypeError: not an OutputTag.
        """
        if not isinstance(tag, OutputTag):
            raise TypeError(
                f'side_output_late_data() at {caller_location()} takes an OutputTag, as in OutputTag("late"), not '
                f"{describe(tag)}"
            )
        changed = copy.copy(self)
        changed._late_tag = tag
        return changed
