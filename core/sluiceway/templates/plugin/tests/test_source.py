"""The source: what every source promises, and what is its own."""

from __future__ import annotations

import pytest
from sluiceway.errors import ConfigurationError
from sluiceway.testing.conformance.source import SourceConformance

from sluiceway_myplugin import MyPluginSource


class TestMyPluginSource(SourceConformance):
    def make_source(self) -> MyPluginSource:
        return MyPluginSource(2500)

    def expected(self) -> list[int]:
        return list(range(2500))


def test_an_impossible_count() -> None:
    with pytest.raises(ConfigurationError, match="there cannot be fewer than 0"):
        MyPluginSource(-1)
