"""Topics of Apache Kafka: ``KafkaSource`` and ``KafkaSink``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_kafka._arrow import ArrowColumns
    from sluiceway_kafka._avro import AvroFormat
    from sluiceway_kafka._json_schema import JsonSchemaFormat
    from sluiceway_kafka._offset_bounds import KafkaOffsets
    from sluiceway_kafka._protobuf import ProtobufFormat
    from sluiceway_kafka._records import KafkaRecord
    from sluiceway_kafka._registry import SchemaRegistry
    from sluiceway_kafka._sink import KafkaSink
    from sluiceway_kafka._source import KafkaSource

__all__ = [
    "ArrowColumns",
    "AvroFormat",
    "JsonSchemaFormat",
    "KafkaOffsets",
    "KafkaRecord",
    "KafkaSink",
    "KafkaSource",
    "ProtobufFormat",
    "SchemaRegistry",
]

_MODULES = {
    "ArrowColumns": "_arrow",
    "AvroFormat": "_avro",
    "JsonSchemaFormat": "_json_schema",
    "KafkaOffsets": "_offset_bounds",
    "KafkaRecord": "_records",
    "KafkaSink": "_sink",
    "KafkaSource": "_source",
    "ProtobufFormat": "_protobuf",
    "SchemaRegistry": "_registry",
}

_CLIENTS = ("confluent_kafka", "kafka")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        from sluiceway.util.name_hints import hint_for, refuse_in_module

        refuse_in_module(__name__, name, __all__, hint_for(__name__, name))
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _CLIENTS:
            raise
        from sluiceway.errors import MissingExtraError
        from sluiceway.util.install_hints import install_command

        raise MissingExtraError(f"{name} needs {missing}: {install_command('sluiceway[kafka]')}") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``kafka``."""

    def load() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_kafka._sink import KafkaSink
        from sluiceway_kafka._source import KafkaSource

        return Connector(source=KafkaSource, sink=KafkaSink)

    return [
        Offer(
            "kafka",
            load,
            "topics of Apache Kafka; exactly-once with transactions",
            requires=_CLIENTS,
            extra="kafka",
        )
    ]


@hookimpl
def sluiceway_cli_commands() -> list[Offer]:
    """Offer ``sluiceway kafka``."""

    def load() -> Any:
        from sluiceway_kafka._cli import kafka

        return kafka

    return [Offer("kafka", load, "inspect and end transactions of Apache Kafka")]
