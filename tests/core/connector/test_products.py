"""Connectors that create the wrong thing, as by a method without ``return``."""

import pytest

import sluiceway as sw
from sluiceway.connector import Sink
from sluiceway.connector.lib import CollectionSource, DiscardSink
from sluiceway.errors import PluginError


class WrongSink(Sink):
    def create_writer(self, context):
        DiscardSink().create_writer(context)


class WrongReader(CollectionSource):
    def create_reader(self, context):
        return 5


class WrongEnumerator(CollectionSource):
    def create_enumerator(self, context, restored=None):
        super().create_enumerator(context, restored)


@pytest.mark.parametrize(
    ("source", "sink", "says"),
    [
        (
            CollectionSource([1]),
            WrongSink(),
            "WrongSink.create_writer() returned None; it must return a SinkWriter",
        ),
        (WrongReader([1]), DiscardSink(), "WrongReader.create_reader() returned an object of type int; it must"),
        (WrongEnumerator([1]), DiscardSink(), "WrongEnumerator.create_enumerator() returned None; it must return"),
    ],
    ids=["writer", "reader", "enumerator"],
)
def test_what_a_connector_must_create_is_named_and_no_restart_is_tried(source, sink, says):
    flow = sw.Pipeline("wrong")
    flow.source(source).uid("in").sink(sink).uid("out")
    with pytest.raises(PluginError) as raised:
        flow.run(checkpoint_interval="1h")
    assert str(raised.value).startswith(says)
