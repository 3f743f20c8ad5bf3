"""Channels inside one worker keep the same promises as those between workers."""

from __future__ import annotations

import pytest

from sluiceway.runtime.localtransport import LocalTransport
from sluiceway.testing.conformance.channels import ChannelConformance, Worker


class _OneWorker:
    name = "w"

    def __init__(self) -> None:
        self.transport = LocalTransport()

    def turn(self, timeout_s: float) -> None:
        """Nothing is ever under way."""


class TestLocalTransport(ChannelConformance):
    @pytest.fixture(autouse=True)
    def _stage(self) -> None:
        self._worker = _OneWorker()

    def worker(self, name: str) -> Worker:
        return self._worker

    def workers(self) -> list[Worker]:
        return [self._worker]
