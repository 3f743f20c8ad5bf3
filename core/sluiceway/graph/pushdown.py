"""Columns that no later step reads: sources do not read them, and they are not sent to keyed steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from sluiceway.connector import Alternatives
from sluiceway.eventtime import ColumnTimestamps, WatermarkStrategy
from sluiceway.graph.transformations import InputRef, Transformation
from sluiceway.steps import (
    ColumnDistinctStep,
    ColumnRunningStep,
    ColumnStep,
    ColumnTransformStep,
    ColumnWindowStep,
    SourceStep,
    Step,
    TimestampsStep,
)

__all__ = ["Pushdown", "pushed_down"]

_Consumers = dict[Transformation, list[tuple[Transformation, InputRef]]]

_Wanted = dict[Transformation, frozenset[str] | None]
"""For each step names among which are the columns of its output that are read; None: all of them."""


@dataclass(frozen=True)
class Pushdown:
    """Steps and edges of a program that leave out columns.

    Attributes:
        steps: new steps in place of those that read or pass fewer columns. They keep places and names, and so
            uids and state.
        sent: by keyed steps the columns that are sent to them, where these are fewer than come in.
    """

    steps: dict[Transformation, Step] = field(default_factory=dict)
    sent: dict[Transformation, tuple[str, ...]] = field(default_factory=dict)


class _UnknownColumnsError(Exception):
    """A transform reads a column that it did not say."""


def pushed_down(order: Sequence[Transformation]) -> Pushdown:
    """Return the steps that can read or pass fewer columns, and the edges that can carry fewer.

    Columns are pushed down through transforms whose input is one stream, through event times whose watermark
    generator looks at timestamps alone, and through aggregates, which read their keys and arguments; conditions of
    filters only where no watermarks are made before the filter: they go by all rows. Joins and ``over`` keep whole
    rows in their state, so they are sent all columns: which ones state holds must not depend on the steps behind.

    Args:
        order: the transformations, inputs before their consumers.
    """
    if not any(isinstance(t.step, ColumnStep) for t in order):
        return Pushdown()
    consumers: _Consumers = {t: [] for t in order}
    for t in order:
        for ref in (*t.inputs, *t.feedback):
            consumers[ref.upstream].append((t, ref))
    wanted: _Wanted = {}
    held: dict[Transformation, Alternatives | None] = {}
    # Consumers first, as a step needs what those behind it need.
    for t in reversed(order):
        below = [_through(after, ref, wanted, held) for after, ref in consumers[t]]
        # What one consumer or the other needs.
        columns = [each for each, _ in below if each is not None]
        conditions = [each for _, each in below if each is not None]
        # One consumer without an answer needs everything.
        wanted[t] = frozenset().union(*columns) if below and len(columns) == len(below) else None
        held[t] = tuple(chain(*conditions)) if below and len(conditions) == len(below) else None
    found = Pushdown()
    try:
        for t in order:
            if isinstance(t.step, SourceStep):
                found.steps.update(_pushed(t, consumers, wanted[t], held[t]))
            elif isinstance(t.step, ColumnWindowStep):
                _narrow(t, consumers, wanted[t], found)
    except _UnknownColumnsError:
        return Pushdown()  # others rely on what that transform said
    return found


def _through(
    t: Transformation,
    ref: InputRef,
    wanted: _Wanted,
    held: dict[Transformation, Alternatives | None],
) -> tuple[frozenset[str] | None, Alternatives | None]:
    """Return the columns that a consumer needs, and what is true of the rows that it does."""
    step = t.step
    if ref.tag is not None:
        return None, None
    if isinstance(step, ColumnWindowStep):
        return _read_by(step, wanted[t]), None
    if len(t.inputs) > 1:
        return None, None
    if isinstance(step, TimestampsStep):
        return _timed(step.strategy, wanted[t]), None
    if isinstance(step, ColumnTransformStep):
        return step.transform.needs(wanted[t]), step.transform.before(held[t])
    return None, None


def _timed(strategy: WatermarkStrategy[Any], wanted: frozenset[str] | None) -> frozenset[str] | None:
    """Return the columns that are needed where event times are taken, and ``wanted`` ones after it."""
    assigner = strategy.assigner
    # A generator of the user's may look at any column.
    if wanted is None or not strategy.by_times:
        return None
    if assigner is None:
        return wanted
    return wanted | {assigner.name} if isinstance(assigner, ColumnTimestamps) else None


def _read_by(step: ColumnWindowStep, wanted: frozenset[str] | None) -> frozenset[str] | None:
    """Return the columns that aggregates read; of steps that emit rows also those ``wanted`` of their output."""
    if step.late_tag is not None:
        return None  # late rows go to the side output as they came
    read = frozenset(step.key.names).union(*(aggregate.columns for _, aggregate in step.aggregates))
    if not isinstance(step, (ColumnDistinctStep, ColumnRunningStep)):
        return read
    return None if wanted is None else read | wanted.intersection(step.entering.names)


def _narrow(t: Transformation, consumers: _Consumers, wanted: frozenset[str] | None, found: Pushdown) -> None:
    """Leave out the columns that a keyed step and those behind it do not read.

    Raises:
        _UnknownColumnsError: a transform behind it does not work without them.
    """
    step = t.step
    assert isinstance(step, ColumnWindowStep)
    read = _read_by(step, wanted)
    if read is None or read.issuperset(step.entering.names):
        return
    found.sent[t] = names = tuple(name for name in step.entering.names if name in read)
    if isinstance(step, (ColumnDistinctStep, ColumnRunningStep)):  # they emit the rows that they are sent
        entering, schema = step.entering, step.schema
        for name in set(step.entering.names).difference(names):
            entering, schema = (whole.remove(whole.get_field_index(name)) for whole in (entering, schema))
        found.steps[t] = msgspec.structs.replace(step, entering=entering, schema=schema)
        found.steps.update(_narrowed_behind(t, consumers, schema))


def _narrowed_behind(t: Transformation, consumers: _Consumers, schema: Any) -> dict[Transformation, Step]:
    """Return new steps in place of those behind one that passes fewer columns.

    Args:
        t: the step.
        consumers: the consumers of each step.
        schema: the columns that it passes now.

    Raises:
        _UnknownColumnsError: a transform does not work on these.
    """
    steps: dict[Transformation, Step] = {}
    todo = [(after, schema) for after, _ in consumers[t]]
    while todo:
        after, entering = todo.pop()
        if isinstance(after.step, ColumnWindowStep):
            continue  # what it is sent is chosen by its name
        made = entering
        if isinstance(after.step, ColumnTransformStep):
            made = after.step.transform.columns_of(entering)
            if made is None:
                raise _UnknownColumnsError
            if made == after.step.schema:
                continue
            steps[after] = msgspec.structs.replace(after.step, schema=made)
        else:
            assert isinstance(after.step, TimestampsStep)  # any other one needs all columns
        todo += [(next_one, made) for next_one, _ in consumers[after]]
    return steps


def _pushed(
    t: Transformation,
    consumers: _Consumers,
    columns: frozenset[str] | None,
    conditions: Alternatives | None,
) -> dict[Transformation, Step]:
    step = t.step
    assert isinstance(step, SourceStep)
    if step.strategy is not None:
        conditions = None
        columns = _timed(step.strategy, columns)
    if columns is None and conditions is None:
        return {}
    found = step.source.pushed(columns, conditions)
    if found is None:
        return {}
    source, schema = found
    pushed = _shown(schema.names if columns is not None else None, conditions)
    steps: dict[Transformation, Step] = {t: msgspec.structs.replace(step, source=source, pushed=pushed)}
    return steps if columns is None else steps | _narrowed_behind(t, consumers, schema)


def _shown(columns: Sequence[str] | None, conditions: Alternatives | None) -> str:
    told = [] if columns is None else [f"columns {', '.join(columns)}"]
    if conditions is not None:
        told.append(f"rows where {' or '.join(map(_conjunction, conditions))}")
    return ", ".join(told)


def _conjunction(comparisons: Sequence[tuple[str, str, Any]]) -> str:
    return " and ".join(f"{name} {operator} {value!r}" for name, operator, value in comparisons)
