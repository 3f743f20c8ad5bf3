"""Topics of Apache Kafka: ``KafkaSource`` and ``KafkaSink``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_kafka._offsets import KafkaOffsets
    from sluiceway_kafka._records import KafkaRecord
    from sluiceway_kafka._sink import KafkaSink
    from sluiceway_kafka._source import KafkaSource

__all__ = ["KafkaOffsets", "KafkaRecord", "KafkaSink", "KafkaSource"]


def __getattr__(name: str) -> Any:
    if name == "KafkaSource":
        from sluiceway_kafka._source import KafkaSource

        return KafkaSource
    if name == "KafkaSink":
        from sluiceway_kafka._sink import KafkaSink

        return KafkaSink
    if name == "KafkaOffsets":
        from sluiceway_kafka._offsets import KafkaOffsets

        return KafkaOffsets
    if name == "KafkaRecord":
        from sluiceway_kafka._records import KafkaRecord

        return KafkaRecord
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
            requires=("confluent_kafka", "kafka"),
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
