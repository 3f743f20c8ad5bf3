"""Broker inside the Kafka client, for tests that need no transactions that survive it and no groups."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer, cimpl
from patience import PATIENT_S

__all__ = ["MockBroker"]

# Arguments of rd_kafka_producev(), by their tags.
_TOPIC, _PARTITION, _VALUE, _MSGFLAGS, _HEADERS = 1, 3, 4, 7, 10
_COPY = 2


class MockBroker:
    """The mock broker of librdkafka. Topics are made by the first look at them, with four partitions.

    Attributes:
        servers: its address.
    """

    def __init__(self) -> None:
        self._owner = Producer({"test.mock.num.brokers": 1})
        (broker,) = self._owner.list_topics(timeout=PATIENT_S).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"

    def close(self) -> None:
        """End the broker."""
        self._owner.close()

    def write(
        self, topic: str, values: Iterable[Any], *, partition: int = 0, timestamps: Iterable[int] | None = None
    ) -> None:
        """Write values, bytes or texts, without a transaction."""
        producer = Producer({"bootstrap.servers": self.servers})
        stamps = iter(timestamps) if timestamps is not None else None
        for value in values:
            producer.produce(topic, value, None, partition, timestamp=next(stamps) if stamps else 0)
        assert producer.flush(PATIENT_S) == 0
        producer.close()

    def write_with_header(self, topic: str, value: bytes, name: bytes) -> None:
        """Write a value to partition 0 with a header whose name is any bytes, which the Python client refuses."""
        library = ctypes.CDLL(cimpl.__file__)
        for function in ("conf_new", "new", "headers_new"):
            getattr(library, f"rd_kafka_{function}").restype = ctypes.c_void_p
        reason = ctypes.create_string_buffer(512)
        configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
        servers = self.servers.encode()
        assert not library.rd_kafka_conf_set(configuration, b"bootstrap.servers", servers, reason, 512)
        producer = ctypes.c_void_p(library.rd_kafka_new(0, configuration, reason, 512))
        headers = ctypes.c_void_p(library.rd_kafka_headers_new(ctypes.c_size_t(1)))
        size = ctypes.c_ssize_t
        library.rd_kafka_header_add(headers, name, size(len(name)), b"of a header", size(-1))
        what = (_TOPIC, topic.encode(), _PARTITION, 0, _MSGFLAGS, _COPY, _VALUE, value, size(len(value)))
        assert not library.rd_kafka_producev(producer, *what, _HEADERS, headers, 0)
        assert not library.rd_kafka_flush(producer, PATIENT_S * 1000)
        library.rd_kafka_destroy(producer)
