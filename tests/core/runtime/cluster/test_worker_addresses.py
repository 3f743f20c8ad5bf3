"""Addresses that a worker knows."""

from __future__ import annotations

from sluiceway.runtime.cluster import worker_process
from sluiceway.runtime.cluster.worker_process import _use_addresses


def test_addresses_of_workers_that_have_ended_are_bounded() -> None:
    known: dict[str, str] = {}
    for n in range(5_000):
        _use_addresses(known, {"stays": "place", f"w{n}": f"place {n}"})
    assert known["stays"] == "place"
    assert known["w4999"] == "place 4999"
    assert known["w4998"] == "place 4998", "a task may be about to connect to it"
    assert len(known) == 2 + worker_process._ENDED_ADDRESSES
