"""Messages of Protobuf as rows in columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sluiceway.errors import ConfigurationError

__all__ = ["row_of", "schema_of_message"]

_TYPES: Final = {  # by the C++ type of a field
    1: "int32",
    2: "int64",
    3: "uint32",
    4: "uint64",
    5: "float64",
    6: "float32",
    7: "bool_",
    8: "string",  # the name of an enum's value
    9: "string",
}
_ENUM: Final = 8
_BYTES: Final = 12
"""Type of a field of bytes, which has the C++ type of texts."""

_Convert = Callable[[Any], Any]


def schema_of_message(descriptor: Any) -> Any:
    """Return the ``pyarrow.Schema`` with a column for each field of a message.

    Raises:
        ConfigurationError: a message holds one of its own type, or it has no fields.
    """
    import pyarrow as pa

    fields = [
        pa.field(field.name, _type_of(field, (descriptor.full_name,)), nullable=bool(field.has_presence))
        for field in descriptor.fields
    ]
    if not fields:
        raise ConfigurationError(f"messages of type {descriptor.full_name} have no fields, and so no columns")
    return pa.schema(fields)


def row_of(descriptor: Any) -> _Convert:
    """Return a function that makes a dict of a message, by the names of its fields. None stays None.

    A field that is not set is None where the message tells that from a default, as it does for messages, fields of
    ``oneof`` and ``optional`` ones; else it has the default.
    """
    made = [
        (field.name, bool(field.has_presence), _is_repeated(field), _converter(field))
        for field in descriptor.fields
    ]

    def row(message: Any) -> Any:
        if message is None:
            return None
        found: dict[str, Any] = {}
        for name, has_presence, is_repeated, convert in made:
            if has_presence and not message.HasField(name):
                found[name] = None
                continue
            value = getattr(message, name)
            # Copied: a container of Protobuf refers to its message.
            found[name] = convert(value) if convert is not None else list(value) if is_repeated else value
        return found

    return row


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _type_of(field: Any, above: tuple[str, ...]) -> Any:
    import pyarrow as pa

    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_one(key, above), _one(value, above))
    return pa.list_(_one(field, above)) if _is_repeated(field) else _one(field, above)


def _one(field: Any, above: tuple[str, ...]) -> Any:
    """Return the type of one element of a field; ``above`` are the messages that it is in."""
    import pyarrow as pa

    message = field.message_type
    if message is None:
        return pa.binary() if field.type == _BYTES else getattr(pa, _TYPES[field.cpp_type])()
    if message.full_name in above:
        raise ConfigurationError(
            f"field {field.full_name!r} holds messages of type {message.full_name}, in which it is itself, to any "
            "depth: such messages have no columns. Read them as records, with source()"
        )
    inner = (*above, message.full_name)
    return pa.struct([pa.field(each.name, _type_of(each, inner)) for each in message.fields])


def _converter(field: Any) -> _Convert | None:
    """Return what makes the value of a column of that of a field; None: it is the same, in a list if repeated."""
    if _is_map(field):
        of_value = _of_one(field.message_type.fields_by_name["value"])
        if of_value is None:
            return lambda values: list(values.items())
        return lambda values: [(key, of_value(value)) for key, value in values.items()]
    convert = _of_one(field)
    if convert is None or not _is_repeated(field):
        return convert
    return lambda values: list(map(convert, values))


def _of_one(field: Any) -> _Convert | None:
    if field.message_type is not None:
        return row_of(field.message_type)
    if field.cpp_type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # A newer writer may have values that the class does not know: their numbers.
        return lambda number: names.get(number) or str(number)
    return None
