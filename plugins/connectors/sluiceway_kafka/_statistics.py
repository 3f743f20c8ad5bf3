"""Statistics of the Kafka client, librdkafka: the parts that metrics of a reader are made of."""

from __future__ import annotations

import msgspec

__all__ = ["PartitionFigures", "Statistics"]


class PartitionFigures(msgspec.Struct):
    unknown: bool = False
    next_offset: int = -1
    lo_offset: int = -1
    hi_offset: int = -1
    ls_offset: int = -1
    fetchq_cnt: int = 0
    fetch_state: str = ""


class _TopicFigures(msgspec.Struct):
    partitions: dict[str, PartitionFigures]


class _BrokerFigures(msgspec.Struct):
    state: str = ""
    nodeid: int = -1


class Statistics(msgspec.Struct):
    """Parts of the client's statistics that metrics use."""

    brokers: dict[str, _BrokerFigures]
    topics: dict[str, _TopicFigures]
