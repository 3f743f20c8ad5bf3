"""Sources in columns that read no more than the steps behind them need."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from sluiceway.connector import Alternatives
from sluiceway.eventtime import ColumnTimestamps
from sluiceway.graph.transformations import InputRef, Transformation
from sluiceway.steps import ColumnTransformStep, SourceStep, Step

__all__ = ["pushed_down"]


def pushed_down(order: Sequence[Transformation]) -> dict[Transformation, Step]:
    """Return new steps for sources that can read less, and for steps behind them that pass fewer columns.

    Columns are pushed down through transforms whose input is one stream, conditions of filters only where no
    watermarks are made before the filter: they go by all rows. Steps keep their places and names, so that their
    state and their uids stay.

    Args:
        order: the transformations, inputs before their consumers.
    """
    sources = [t for t in order if isinstance(t.step, SourceStep)]
    if not any(isinstance(t.step, ColumnTransformStep) for t in order):
        return {}
    consumers: dict[Transformation, list[tuple[Transformation, InputRef]]] = {t: [] for t in order}
    for t in order:
        for ref in (*t.inputs, *t.feedback):
            consumers[ref.upstream].append((t, ref))
    wanted: dict[Transformation, frozenset[str] | None] = {}
    held: dict[Transformation, Alternatives | None] = {}
    for t in reversed(order):
        below = [_through(after, ref, wanted, held) for after, ref in consumers[t]]
        # What one consumer or the other needs.
        columns = [each for each, _ in below if each is not None]
        conditions = [each for _, each in below if each is not None]
        wanted[t] = frozenset().union(*columns) if below and len(columns) == len(below) else None
        held[t] = tuple(chain(*conditions)) if below and len(conditions) == len(below) else None
    steps: dict[Transformation, Step] = {}
    for t in sources:
        steps |= _pushed(t, consumers, wanted[t], held[t])
    return steps


def _through(
    t: Transformation,
    ref: InputRef,
    wanted: dict[Transformation, frozenset[str] | None],
    held: dict[Transformation, Alternatives | None],
) -> tuple[frozenset[str] | None, Alternatives | None]:
    """Return the columns that a consumer needs, and what is true of the rows that it does."""
    if not isinstance(t.step, ColumnTransformStep) or len(t.inputs) > 1 or ref.tag is not None:
        return None, None
    transform = t.step.transform
    return transform.needs(wanted[t]), transform.before(held[t])


def _pushed(
    t: Transformation,
    consumers: dict[Transformation, list[tuple[Transformation, InputRef]]],
    columns: frozenset[str] | None,
    conditions: Alternatives | None,
) -> dict[Transformation, Step]:
    step = t.step
    assert isinstance(step, SourceStep)
    if step.strategy is not None:
        conditions = None
        assigner = step.strategy.assigner
        if isinstance(assigner, ColumnTimestamps):
            columns = None if columns is None else columns | {assigner.name}
        elif assigner is not None:
            columns = None
    if columns is None and conditions is None:
        return {}
    found = step.source.pushed(columns, conditions)
    if found is None:
        return {}
    source, schema = found
    steps: dict[Transformation, Step] = {
        t: msgspec.structs.replace(
            step, source=source, pushed=_shown(schema.names if columns is not None else None, conditions)
        )
    }
    todo = [] if columns is None else [(after, schema) for after, _ in consumers[t]]
    while todo:
        after, entering = todo.pop()
        assert isinstance(after.step, ColumnTransformStep)  # any other one needs all columns
        made = after.step.transform.columns_of(entering)
        if made is None:
            return {}  # an expression reads a column that it did not say
        if made != after.step.schema:
            steps[after] = msgspec.structs.replace(after.step, schema=made)
            todo += [(next_one, made) for next_one, _ in consumers[after]]
    return steps


def _shown(columns: Sequence[str] | None, conditions: Alternatives | None) -> str:
    told = [] if columns is None else [f"columns {', '.join(columns)}"]
    if conditions is not None:
        told.append(f"rows where {' or '.join(map(_conjunction, conditions))}")
    return ", ".join(told)


def _conjunction(comparisons: Sequence[tuple[str, str, Any]]) -> str:
    return " and ".join(f"{name} {operator} {value!r}" for name, operator, value in comparisons)
