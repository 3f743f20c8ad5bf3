"""Check of whether rows of a DataFrame can become records."""

from __future__ import annotations

from typing import Any, Final

from sluiceway.errors import ConfigurationError

__all__ = ["check_readable"]

_READ: Final = frozenset(
    {
        "ArrayType",
        "BinaryType",
        "BooleanType",
        "ByteType",
        "CharType",
        "DateType",
        "DayTimeIntervalType",
        "DecimalType",
        "DoubleType",
        "FloatType",
        "IntegerType",
        "LongType",
        "MapType",
        "NullType",
        "ShortType",
        "StringType",
        "StructType",
        "TimeType",
        "TimestampNTZType",
        "TimestampType",
        "VarcharType",
        "VariantType",
    }
)

_NO_ARROW: Final = frozenset({"YearMonthIntervalType"})
"""Types whose batches pyarrow cannot read."""


def check_readable(struct: Any, what: str, *, as_arrow: bool) -> None:
    """Check that no column would be lost, and that each type has a value in Python.

    Args:
        struct: the StructType of the rows.
        what: names what is read in messages.
        as_arrow: whether the records are Arrow batches, which also have types that no record has.

    Raises:
        ConfigurationError: names the column and what to do about it.
    """
    _check_struct(struct, f"cannot read {what}: ", "", as_arrow)


def _check_struct(struct: Any, where: str, path: str, as_arrow: bool) -> None:
    names = [field.name for field in struct]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(
            f"{where}two columns are called {path + twice!r}, and a record would have one of them: rename or drop "
            "one in the query"
        )
    for field in struct:
        _check_type(field.dataType, where, path + field.name, as_arrow)


def _check_type(kind: Any, where: str, path: str, as_arrow: bool) -> None:
    name = type(kind).__name__
    if name in _NO_ARROW or not (as_arrow or name in _READ):
        raise ConfigurationError(
            f"{where}column {path!r} is {kind.simpleString()}, which has no value in a record: cast it in the "
            "query, as to STRING"
        )
    if name == "ArrayType":
        _check_type(kind.elementType, where, f"{path}[]", as_arrow)
    elif name == "MapType":
        _check_type(kind.keyType, where, f"{path}.key", as_arrow)
        _check_type(kind.valueType, where, f"{path}.value", as_arrow)
    elif name == "StructType":
        _check_struct(kind, where, f"{path}.", as_arrow)
