"""The ZeroMQ carrier."""

from __future__ import annotations

import pytest

from sluiceway.carrier import Carrier
from sluiceway.testing.conformance.carrier import CarrierConformance

pytest.importorskip("zmq", reason="needs pyzmq")

from sluiceway_zmq._carrier import ZmqCarrier


class TestZmqCarrier(CarrierConformance):
    def make_carrier(self) -> Carrier:
        return ZmqCarrier("")


class TestZmqCarrierOverTcp(CarrierConformance):
    def make_carrier(self) -> Carrier:
        return ZmqCarrier("tcp://127.0.0.1:*")
