"""Protobuf with a schema registry."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sluiceway.errors import ConfigurationError, ConnectorError, SerializationError
from sluiceway.util.overriding import override
from sluiceway_kafka._formats import FormatReader, RegistryFormat, Strategy, fetched, refused
from sluiceway_kafka._registry import PREFIX_LENGTH, SchemaCache, SchemaRegistry, check_libraries, request

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

__all__ = ["ProtobufFormat"]


class ProtobufFormat(RegistryFormat):
    """Protobuf with a schema registry, for ``deserializer``, ``serializer`` and the same of keys.

    Records are messages of a class that ``protoc`` has generated. A record that holds a message of another type
    cannot be decoded, where the registry returns schemas in serialised form, as Confluent's does.

    Written messages have the schema of their file, which is registered, with the files that it imports, when a
    subtask writes its first record to a topic. Without ``auto_register`` the registry must have them. None is a
    tombstone.

    Args:
        registry: URL of the registry, or a :class:`SchemaRegistry`.
        type: the class of the messages.
        auto_register: True if schemas are registered to write with.
        subject_name_strategy: what subjects are called after: ``topic``, ``record`` (the full name of the message)
            or ``topic-record``.
        normalize: True if the registry is to normalise schemas.

    Raises:
        ConfigurationError: an argument cannot be used.
        MissingExtraError: the extra ``kafka-registry`` is not installed.
    """

    schema_type = "PROTOBUF"

    def __init__(
        self,
        registry: str | SchemaRegistry,
        *,
        type: Any,  # noqa: A002 - the word for it everywhere here
        auto_register: bool = True,
        subject_name_strategy: Strategy = "topic",
        normalize: bool = False,
    ) -> None:
        check_libraries("ProtobufFormat", "google.protobuf", "google.type")
        super().__init__(registry, type, auto_register, subject_name_strategy, normalize)
        if not hasattr(type, "DESCRIPTOR") or not hasattr(type, "FromString"):
            raise ConfigurationError(f"type={type!r} must be a class that protoc has generated for a message")

    @override
    def reader(self, wake: Callable[[], None] | None) -> FormatReader:
        return _ProtobufReader(self, wake)

    def check_writing(self) -> None:
        """Nothing: the class of messages was checked."""

    def serializer(self, topic: str, field: str) -> Callable[[Any], bytes | None]:
        """Make what encodes for one topic; the library, which registers the schema, encodes the first message."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
        from confluent_kafka.serialization import SerializationContext

        type_ = self.type
        prefix = b""
        configuration = {
            "auto.register.schemas": self.auto_register,
            "normalize.schemas": self.normalize,
            "subject.name.strategy.type": self.strategy.upper().replace("-", "_"),
        }
        subject = self.subject(topic, field, type_.DESCRIPTOR.full_name)
        doing = f"{'register' if self.auto_register else 'find'} the schema of subject {subject!r}"

        def encode(record: Any) -> bytes | None:
            nonlocal prefix
            if record is None:
                return None
            if not isinstance(record, type_):
                raise ConnectorError(f"the format takes {type_.__name__}, not {type(record).__name__}")
            data: bytes = record.SerializeToString()
            if not prefix:
                try:
                    whole = request(
                        self.registry,
                        doing,
                        lambda client: ProtobufSerializer(type_, client, configuration)(
                            record, SerializationContext(topic, field)
                        ),
                    )
                except SchemaRegistryError as error:
                    raise refused(doing, self, error) from error
                prefix = whole[: len(whole) - len(data)]
            return prefix + data

        return encode


class _ProtobufReader(FormatReader):
    def __init__(self, format_: ProtobufFormat, wake: Callable[[], None] | None) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        parse = format_.type.FromString
        wanted = format_.type.DESCRIPTOR.full_name

        def make(client: SchemaRegistryClient, schema_id: int) -> _Messages:
            schema = fetched(client, schema_id, format_.schema_type, "serialized")
            try:
                return _Messages(
                    wanted, FileDescriptorProto.FromString(b64decode(schema.schema_str or "", validate=True))
                )
            except Exception:  # the registry has no serialised form, but a text, which nothing here can parse
                return _Messages(wanted, None)

        cache: SchemaCache[_Messages] = SchemaCache(format_.registry, make, wake)
        known, get = cache.known, cache.get

        def decode(data: bytes) -> Any:
            prefix = data[:PREFIX_LENGTH]
            messages = known.get(prefix)
            if messages is None:
                messages = get(prefix)
            begin = messages.check(data)
            try:
                return parse(data[begin:])
            except Exception as error:
                raise SerializationError(f"it is no message of type {wanted}: {error}") from error

        self._cache = cache
        self.decode = decode

    def close(self) -> None:
        self._cache.close()


class _Messages:
    """Messages of one schema.

    Args:
        wanted: full name of the message that records are to hold.
        file: the schema; None: it is not known, and any message is taken.
    """

    def __init__(self, wanted: str, file: Any) -> None:
        self._wanted = wanted
        self._file = file
        self._first_is_right = file is None or self._name((0,)) == wanted

    def check(self, data: bytes) -> int:
        """Return where a message begins in a record.

        Raises:
            SerializationError: it is another message, or not there.
        """
        if data[PREFIX_LENGTH : PREFIX_LENGTH + 1] == b"\0" and self._first_is_right:
            return PREFIX_LENGTH + 1
        indexes, begin = _indexes(data)
        if self._file is not None and (name := self._name(indexes)) != self._wanted:
            raise SerializationError(f"it holds a message of type {name}, not {self._wanted}")
        return begin

    def _name(self, indexes: tuple[int, ...]) -> str:
        names = [self._file.package] if self._file.package else []
        messages = self._file.message_type
        for index in indexes:
            if not 0 <= index < len(messages):
                raise SerializationError(f"its schema has no message at index {list(indexes)}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        return ".".join(names)


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a message in its schema, and where the message begins."""
    # Confluent's wire format: behind the prefix is the path to the message among those of the file, as number of
    # indexes and indexes. A lone 0 stands for the path [0].
    count, begin = _varint(data, PREFIX_LENGTH)
    if count == 0:
        return (0,), begin
    indexes = []
    for _ in range(count):
        index, begin = _varint(data, begin)
        indexes.append(index)
    return tuple(indexes), begin


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in zigzag encoding, and where it ends."""
    value = shift = 0
    # At most five bytes of seven bits: the numbers have 32 bits.
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise SerializationError("it ends, or makes no sense, where the index of its message is expected")
