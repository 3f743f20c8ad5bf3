"""Settings of a step that is already part of the pipeline: its name, uid, parallelism and others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from sluiceway.api.arguments import check_count, check_text, to_ms
from sluiceway.api.location import caller_location
from sluiceway.errors import GraphError
from sluiceway.graph import MAX_PARALLELISM_LIMIT, InputRef, Transformation
from sluiceway.streamgraph import ChainingStrategy

if TYPE_CHECKING:
    from typing import Self

__all__ = ["StepSettings", "both_inputs", "output_of_one_step"]


def both_inputs(first: Sequence[InputRef], second: Sequence[InputRef]) -> tuple[InputRef, ...]:
    """Return the inputs of a step that reads two streams: port 0 is the first one, and port 1 the second."""
    return (*first, *(replace(ref, port=1) for ref in second))


def output_of_one_step(inputs: Sequence[InputRef], setting: str, made_by: str) -> Transformation:
    """Return the transformation that a stream is the output of.

    Args:
        inputs: what the stream comes from.
        setting: the method that needs it, for the message.
        made_by: the method that returned the stream, for the message.

    Raises:
        GraphError: it is a union, a side output or partitioned, and so has no step of its own.
    """
    ref = inputs[0]
    if len(inputs) > 1 or ref.tag is not None or ref.partitioner is not None:
        raise GraphError(
            f"{setting}() at {caller_location()}: {made_by} is no step of its own; call {setting}() on the step "
            "before or after it"
        )
    return ref.upstream


class StepSettings:
    """Base of the objects that step methods return. Every setting returns the same object, for chaining."""

    def _settable(self, setting: str) -> Transformation:
        """Return the transformation to change. Raises GraphError if this is not the output of one step."""
        raise NotImplementedError

    def name(self, name: str) -> Self:
        """Set the name of the step in plans, messages and metrics. Raises TypeError, ValueError."""
        self._settable("name").name = check_text("name()", name)
        return self

    def set_description(self, description: str) -> Self:
        """Set a text that plans and the web interface show beside the name. Raises TypeError, ValueError.

        Names stand in messages, logs and metrics, and are short for that; a description may be a sentence or more.
        """
        self._settable("set_description").description = check_text("set_description()", description)
        return self

    def uid(self, uid: str) -> Self:
        """Set a stable id, by which a restore finds the step's state after other steps have changed.

        Must be unique in the pipeline. Without it the id comes from the structure upstream of the step.

        Raises:
            TypeError: not a str.
            ValueError: empty.
        """
        self._settable("uid").uid = check_text("uid()", uid)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks. Raises TypeError, ValueError."""
        self._settable("set_parallelism").parallelism = check_count("set_parallelism()", parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups: the highest parallelism that the step's state can ever be used at.

        Raises:
            TypeError: not an int.
            ValueError: not from 1 to 32768.
        """
        checked = check_count("set_max_parallelism()", max_parallelism, maximum=MAX_PARALLELISM_LIMIT)
        self._settable("set_max_parallelism").max_parallelism = checked
        return self

    def slot_sharing_group(self, group: str) -> Self:
        """Put the step into a slot-sharing group: only steps of one group share slots and tasks."""
        self._settable("slot_sharing_group").slot_sharing_group = check_text("slot_sharing_group()", group)
        return self

    def co_location_group(self, group: str) -> Self:
        """Make subtasks with the same index share a slot, and so a process, with those of the group's other steps.

        Slot sharing does so by itself where it can; this is for steps that rely on it. They must have the same
        parallelism and be in one slot-sharing group: else the pipeline is refused with a GraphError.
        """
        self._settable("co_location_group").co_location_group = check_text("co_location_group()", group)
        return self

    def start_new_chain(self) -> Self:
        """Run the step in another task than the step before it; those after it may join."""
        self._settable("start_new_chain").chaining = ChainingStrategy.HEAD
        return self

    def disable_chaining(self) -> Self:
        """Run the step in a task of its own."""
        self._settable("disable_chaining").chaining = ChainingStrategy.NEVER
        return self

    def on_error(self, action: Literal["fail", "skip"], *, max: int | None = None) -> Self:  # noqa: A002
        """Set what happens to a record for which the step's function raises an exception.

        Skipped records come out of :meth:`DataStream.dead_letters`, and into the directory of the option
        ``dead-letters``. What the function has emitted for such a record is taken back. What it has changed stays
        changed: its own attributes, state, timers. The running results of ``reduce`` and ``aggregate`` are as if
        the record had not come, unless the function changes what it was given in place.

        The pipeline's option ``on-error`` says it for every step that does not.

        Args:
            action: ``fail``: the job fails with the exception. ``skip``: go on with the next record.
            max: for ``skip``: how many records a subtask may skip before the next one fails the job; None: any
                number. After a restart it counts anew.

        Raises:
            GraphError: a step of this kind cannot skip records.
            TypeError: ``max`` is no whole number.
            ValueError: there is no such action; ``max`` is below 1, or goes with ``fail``.
        """
        t = self._settable("on_error")
        if action not in ("fail", "skip"):
            raise ValueError(f"on_error({action!r:.60}) at {caller_location()}: it is 'fail' or 'skip'")
        if max is not None:
            if action == "fail":
                raise ValueError(f"on_error() at {caller_location()}: max= goes with 'skip'")
            max = check_count("on_error(max=)", max)  # noqa: A001
        if action == "skip" and not t.step.skips:
            raise GraphError(
                f"on_error('skip') at {caller_location()}: {t.label()} cannot skip records; map, flat_map, "
                "filter, branch, inspect, process, async_map, reduce, aggregate and "
                "assign_timestamps_and_watermarks can, outside of windows, steps of columns without state, and "
                "sources with a timestamp assigner or a decoder"
            )
        t.skips_errors, t.max_dead_letters = action == "skip", max
        return self

    def set_buffer_timeout(self, timeout: timedelta | int | str) -> Self:
        """Set how long a record may stay in an output buffer that is not full.

        Args:
            timeout: a timedelta, milliseconds, or a text (``"100ms"``); 0: while the step's task has more to do at
                once, for 5 ms at most; -1: until a batch is full.
        """
        self._settable("set_buffer_timeout").buffer_timeout_ms = to_ms("set_buffer_timeout()", timeout)
        return self
