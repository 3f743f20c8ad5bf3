"""Records of a partition as columns of Arrow."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from confluent_kafka import Message

from sluiceway.errors import ConfigurationError, MissingExtraError, SerializationError, choose
from sluiceway.util.install_hints import install_command
from sluiceway_kafka._records import headers_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ArrowColumns", "ArrowReader", "joined", "need_pyarrow"]

_ALL: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_RAW: Final = ("key", "value", "topic", "partition", "offset", "timestamp")


def need_pyarrow() -> None:
    """Raise MissingExtraError if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(f"columns of Arrow need pyarrow: {install_command('sluiceway[arrow]')}")


class ArrowColumns:
    """Deserializer that makes one ``pyarrow.RecordBatch`` of the records that a poll of a partition returns.

    Each RecordBatch is one record of the stream. Its rows are records of one partition in their order, at most
    ``batch-size`` of them and as many as are there: how many depends on load. Its timestamp is the largest of its
    rows, so that the watermark behind it is where it would be behind the rows. Checkpoints lie between
    RecordBatches.

    Args:
        schema: JSON objects in the values become these columns. Fields that an object does not have are null,
            those that the schema does not have are left out, and an object without a field that is not nullable
            cannot be decoded, like one with a value of another type. None: values are a column of bytes.
        columns: names of the columns, in their order: ``key`` (binary), ``value`` (binary; with ``schema``, its
            columns take this place), ``headers`` (map of string to binary), ``topic`` (string), ``partition``
            (int32), ``offset`` (int64) and ``timestamp`` (ms, UTC). None: all of them but the headers; with
            ``schema`` its columns alone.

    Raises:
        ConfigurationError: an argument cannot be used.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(self, schema: pyarrow.Schema | None = None, *, columns: Sequence[str] | None = None) -> None:
        need_pyarrow()
        import pyarrow

        if schema is not None and not isinstance(schema, pyarrow.Schema):
            raise ConfigurationError(f"schema={schema!r:.60} must be a pyarrow.Schema")
        if columns is None:
            columns = _RAW if schema is None else ("value",)
        if isinstance(columns, str) or not columns:
            raise ConfigurationError(f"columns={columns!r} must be names of columns, such as {list(_RAW)}")
        for name in columns:
            if name not in _ALL:
                raise choose("column", str(name), _ALL)
        self.schema = schema
        self.columns = tuple(columns)
        if schema is not None:
            if "value" not in self.columns:
                raise ConfigurationError("columns= has to name 'value', in whose place the columns of schema= are")
            _check(schema)
        self.full_schema = self._full()
        """Schema of the RecordBatches."""

    def __repr__(self) -> str:
        return f"ArrowColumns({', '.join(self.full_schema.names)})"

    def _full(self) -> pyarrow.Schema:
        import pyarrow as pa

        types = {
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": pa.map_(pa.string(), pa.binary()),
            "topic": pa.string(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("ms", tz="UTC"),
        }
        fields: list[Any] = []
        for name in self.columns:
            if name == "value" and self.schema is not None:
                fields += self.schema
            else:
                fields.append(pa.field(name, types[name]))
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"there would be {names.count(name)} columns {name!r}")
        return pa.schema(fields)


def _check(schema: pyarrow.Schema) -> None:
    """Raise ConfigurationError for types that JSON is not converted to."""
    import pyarrow as pa

    if not len(schema):
        raise ConfigurationError("schema= has no columns")
    try:
        _read_json([b"{}"], pa.schema([field.with_nullable(True) for field in schema]))
    except pa.ArrowNotImplementedError as error:
        raise ConfigurationError(f"schema= cannot be used: {error}") from error


class _Object(msgspec.Struct):
    """A JSON object, whatever its fields."""


class ArrowReader:
    """Reader of messages into RecordBatches. Its own modules are those of pyarrow, imported once."""

    def __init__(self, columns: ArrowColumns) -> None:
        import pyarrow

        self._pa = pyarrow
        self._schema = columns.schema
        self._full_schema = columns.full_schema
        self._check_object = msgspec.json.Decoder(_Object).decode
        self._makers: list[tuple[Callable[[Sequence[Message]], Any], bool]] = []
        for name in columns.columns:
            if name == "value" and columns.schema is not None:
                self._makers.append((self._json, True))
            else:
                self._makers.append((getattr(self, f"_{name}"), False))

    def decode(self, messages: Sequence[Message]) -> pyarrow.RecordBatch:
        """Return the messages, which are of one partition, as one RecordBatch.

        Raises:
            Exception: one of them cannot be decoded.
        """
        arrays: list[Any] = []
        for maker, makes_several in self._makers:
            if makes_several:
                arrays += maker(messages)
            else:
                arrays.append(maker(messages))
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._full_schema)

    def _json(self, messages: Sequence[Message]) -> list[Any]:
        values = [message.value() for message in messages]
        if None in values:
            raise SerializationError(
                "the record has no value: it is a tombstone. ArrowColumns without schema= takes those"
            )
        # Arrow reads whatever objects there are, and a null among them ends the process (pyarrow 26). With this
        # check, each value is one object.
        for value in values:
            self._check_object(value)
        table = _read_json(values, self._schema)
        if table.num_rows != len(values):
            raise SerializationError(f"{len(values)} values have become {table.num_rows} rows")
        table.validate(full=True)  # of strings that are not UTF-8
        return [column.combine_chunks() for column in table.columns]

    def _key(self, messages: Sequence[Message]) -> Any:
        return self._pa.array([message.key() for message in messages], self._pa.binary())

    def _value(self, messages: Sequence[Message]) -> Any:
        return self._pa.array([message.value() for message in messages], self._pa.binary())

    def _headers(self, messages: Sequence[Message]) -> Any:
        pa = self._pa
        return pa.array([headers_of(message) for message in messages], pa.map_(pa.string(), pa.binary()))

    def _topic(self, messages: Sequence[Message]) -> Any:
        return self._pa.repeat(messages[0].topic(), len(messages))

    def _partition(self, messages: Sequence[Message]) -> Any:
        pa = self._pa
        return pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), len(messages))

    def _offset(self, messages: Sequence[Message]) -> Any:
        return self._pa.array([message.offset() for message in messages], self._pa.int64())

    def _timestamp(self, messages: Sequence[Message]) -> Any:
        pa = self._pa
        stamps = [ms if kind and ms >= 0 else None for kind, ms in (message.timestamp() for message in messages)]
        return pa.array(stamps, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))


def joined(batches: Sequence[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    """Return the rows of several RecordBatches, at least one, as one."""
    import pyarrow

    if len(batches) == 1:
        return batches[0]
    (rows,) = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()
    return rows


def _read_json(values: Sequence[bytes], schema: Any) -> Any:
    import pyarrow
    import pyarrow.json

    data = b"\n".join(values)
    return pyarrow.json.read_json(
        io.BytesIO(data),
        # One block, so that no object lies across two; a thread of its own would take longer.
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
