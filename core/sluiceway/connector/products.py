"""Checks of what a connector says, creates and returns, which is code of users and third parties."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard, TypeVar

from sluiceway.connector.sinks import DeliveryGuarantee
from sluiceway.connector.sources import Boundedness, Source
from sluiceway.connector.waits import Wait
from sluiceway.elements import Batch
from sluiceway.errors import ConnectorError, PluginError

__all__ = ["are_records", "check_properties", "check_splits", "checked", "listed", "waited", "wrong_poll"]

T = TypeVar("T")

_ABSENT: Final = object()
_PROPERTIES: Final[dict[str, type]] = {
    "boundedness": Boundedness,
    "commits_once": object,
    "commits_positions": object,
    "follows_input": object,
    "gives_timestamps": object,
    "guarantee": DeliveryGuarantee,
    "input_type": object,
    "max_readers": int,
    "max_writers": int,
    "name": object,
    "needs_program": object,
    "output_type": object,
    "rejects_records": object,
    "seekable": object,
    "uses_events": object,
}


def check_properties(connector: object) -> None:
    """Check what a source or a sink says about itself.

    Raises:
        PluginError: a property is a method, which would count as true, or has a value of another kind.
    """
    for name, kind in _PROPERTIES.items():
        value = getattr(connector, name, _ABSENT)
        if value is _ABSENT:
            continue
        where = f"{type(connector).__name__}.{name}"
        if inspect.ismethod(value):
            raise PluginError(f"{where} is a method; it must be a property: write @property above it")
        if kind is int:
            if value is not None and (type(value) is not int or value < 1):
                raise PluginError(
                    f"{where} is {value!r:.60}; it must be a whole number from 1 on, or None for any"
                )
        elif not isinstance(value, kind):
            raise PluginError(f"{where} is {value!r:.60}; it must be a {kind.__name__} (sluiceway.connector)")


def checked(made: T, kind: type, connector: object, method: str) -> T:
    """Return what a method of a source or a sink has created.

    Raises:
        PluginError: it is of another kind, as None of a method without ``return``; no restart helps.
    """
    if isinstance(made, kind):
        return made
    what = "None" if made is None else f"an object of type {type(made).__name__}"
    raise PluginError(
        f"{type(connector).__name__}.{method}() returned {what}; it must return a {kind.__name__} "
        f"(sluiceway.connector.{kind.__name__})"
    )


def check_splits(splits: Iterable[Any], source: object) -> None:
    """Check what an enumerator assigns.

    Raises:
        PluginError: an object without a ``split_id``, or its id is no text, as a method that is no property.
    """
    for split in splits:
        split_id = getattr(split, "split_id", None)
        if not isinstance(split_id, str):
            has = "no split_id" if split_id is None else f"the split_id {split_id!r:.60}"
            advice = ": write @property above it" if inspect.ismethod(split_id) else ""
            raise PluginError(
                f"the enumerator of {type(source).__name__} assigned a {type(split).__name__} with {has}; a split "
                f"must have a property split_id, a text{advice}"
            )


def listed(returned: Any, owner: object, method: str, of_what: str) -> Sequence[Any]:
    """Return what a method of a reader or a writer has returned for a checkpoint, as a sequence.

    Raises:
        PluginError: it is no collection, as None of a method without ``return``, or it is a text or a mapping,
            whose parts would stand in the checkpoint in place of the whole; no restart helps.
    """
    if isinstance(returned, (list, tuple)):
        return returned
    if isinstance(returned, Iterable) and not isinstance(returned, (str, bytes, bytearray, Mapping)):
        return list(returned)
    what = "None" if returned is None else f"an object of type {type(returned).__name__}"
    raise PluginError(f"{type(owner).__name__}.{method}() returned {what}; it must return a list of {of_what}")


def are_records(returned: object) -> TypeGuard[list[Any] | Batch[Any]]:
    """Return whether a reader has returned records from ``poll()``: each with an event time, or none with one."""
    if not isinstance(returned, Batch):
        return isinstance(returned, list) and bool(returned)
    stamps = returned.timestamps
    return len(returned) > 0 and (stamps is None or len(stamps) == len(returned))


def wrong_poll(returned: Any, source: Source[Any]) -> ConnectorError:
    """Return the error for what a reader has returned from ``poll()``: no result, no records, or too few times."""
    if isinstance(returned, (list, Batch)) and not len(returned):
        return ConnectorError(
            f"the reader of {source.name} returned no records from poll(); "
            "when there are none it must return a Wait that says when to ask again"
        )
    if isinstance(returned, Batch) and returned.timestamps is not None:
        return ConnectorError(
            f"the reader of {source.name} returned a Batch with {len(returned)} records and "
            f"{len(returned.timestamps)} timestamps from poll(); each record needs one, or timestamps is None"
        )
    return ConnectorError(
        f"the reader of {source.name} returned {returned!r:.100} ({type(returned).__name__}) "
        "from poll(); it must return a list, a Batch, a Wait or END_OF_INPUT"
    )


def waited(returned: Any, owner: object) -> Wait | None:
    """Return what a writer waits for.

    Raises:
        PluginError: it is neither a Wait nor None, as True of a method that only says whether.
    """
    if returned is None or isinstance(returned, Wait):
        return returned
    raise PluginError(
        f"{type(owner).__name__}.blocked() returned {returned!r:.60}; it must return a Wait "
        "(sluiceway.connector.Wait) for what it waits for, or None"
    )
