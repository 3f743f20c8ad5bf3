"""The sink: what every sink promises, and what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from sluiceway.errors import ConnectorError
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.drivers import drive_sink

from sluiceway_myplugin import MyPluginSink


class TestMyPluginSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.made = 0

    def make_sink(self) -> MyPluginSink:
        self.made += 1
        return MyPluginSink(self.directory / f"{self.made}.txt")

    def written(self) -> list[str]:
        return (self.directory / f"{self.made}.txt").read_text().splitlines()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=r"cannot write .*: No such file or directory"):
        drive_sink(MyPluginSink(tmp_path / "none" / "a.txt"), ["line"])
