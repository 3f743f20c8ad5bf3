"""Ports of a test cluster of Kafka."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluiceway.testing import kafka


def test_the_ports_of_all_listeners_are_chosen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ports(wanted: Sequence[int]) -> list[int]:
        asked.append(list(wanted))
        return [port or 50_000 + number for number, port in enumerate(wanted)]

    monkeypatch.setattr(kafka, "_ports", ports)
    cluster = kafka.KafkaCluster(3, port=9092, secured=True)
    cluster._choose_ports()
    assert asked == [[9092, 9093, 9094, *[0] * 12]]
    chosen = [cluster._ports, cluster._controllers, *cluster._secured_ports.values()]
    assert [len(each) for each in chosen] == [3] * 5
    assert len({port for each in chosen for port in each}) == 15
