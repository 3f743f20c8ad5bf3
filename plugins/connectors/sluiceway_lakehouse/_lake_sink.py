"""Base of the sinks into tables of a lakehouse, and the checks of their arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sluiceway.connector import DeliveryGuarantee, Sink
from sluiceway.errors import ConfigurationError, SerializationError
from sluiceway.util.overriding import override

if TYPE_CHECKING:
    from typing import Self

__all__ = ["LakeSink", "LakeTarget", "check_settings", "schema_with"]


@dataclass(frozen=True)
class LakeTarget:
    """Settings that the sinks of all table formats have.

    Attributes:
        place: of the table.
        schema: columns of a table to create; None: the table exists.
        rows: columns of rows in columns; None: rows are records.
    """

    place: Any
    schema: Any
    rows: Any


T = TypeVar("T", bound=LakeTarget)


class LakeSink(Sink[Any], Generic[T]):
    """Sink that appends rows to a table.

    Args:
        target: its settings.
    """

    def __init__(self, target: T) -> None:
        self._target = target

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target.place)!r})"

    @property
    def name(self) -> str:
        """Name with the place of the table."""
        return str(self._target.place)

    @property
    @override
    def guarantee(self) -> DeliveryGuarantee:
        return DeliveryGuarantee.EXACTLY_ONCE

    def for_columns(self, schema: Any) -> Self:
        """Return the sink for rows with these columns; compare them with those of the table, if it exists."""
        sink = copy(self)
        columns = schema if self._target.schema is None else self._target.schema
        sink._target = replace(self._target, schema=columns, rows=schema)
        sink._check_table()
        return sink

    @abstractmethod
    def _check_table(self) -> None:
        """Raise MisfitError if the rows do not fit the table, or cannot be those of a new one."""


def check_settings(merge_schema: object, **sizes: object) -> None:
    """Raise ConfigurationError for a size that is no number of at least 1, and for no bool."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"{name}={value!r} must be a whole number, at least 1")
    if not isinstance(merge_schema, bool):
        raise ConfigurationError(f"merge_schema={merge_schema!r:.100} must be True or False")


def schema_with(given: Any, partition_by: Iterable[str]) -> Any:
    """Return what a user has given as schema as a ``pyarrow.Schema``; None for None.

    Raises:
        ConfigurationError: it is none, or lacks a partition column.
    """
    if given is None:
        return None
    from sluiceway.columns.schemas import schema_of

    try:
        schema = schema_of(given)
    except SerializationError as error:
        raise ConfigurationError(f"schema=: {error}") from error
    for name in partition_by:
        if name not in schema.names:
            raise ConfigurationError(
                f"partition_by={name!r}: schema= has no such column; it has {', '.join(schema.names)}"
            )
    return schema
