"""Connectors that create the wrong thing, as by a method without ``return``."""

import pytest

import sluiceway as sw
from sluiceway.connector import CommittingSinkWriter, Sink
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


class Committing(CommittingSinkWriter):
    def __init__(self, returned):
        self.returned = returned

    def write(self, values, timestamps):
        pass

    def prepare_commit(self, checkpoint_id):
        return self.returned

    def commit(self, committables):
        raise AssertionError(f"parts of a committable: {committables}")


class CommittingSink(Sink):
    def __init__(self, returned):
        self.returned = returned

    def create_writer(self, context):
        return Committing(self.returned)


@pytest.mark.parametrize(
    ("returned", "what"),
    [(None, "None"), ("part-0", "an object of type str"), ({"part-0": 3}, "an object of type dict")],
)
@pytest.mark.parametrize("interval", ["0", "1h"], ids=["at the end alone", "with checkpoints"])
def test_a_writer_that_returns_no_list_of_committables_is_named_and_commits_nothing(returned, what, interval):
    flow = sw.Pipeline("wrong")
    flow.from_collection([1]).sink(CommittingSink(returned))
    with pytest.raises(PluginError) as raised:
        flow.run(checkpoint_interval=interval, restart="none")
    says = f"Committing.prepare_commit() returned {what}; it must return a list of committables"
    assert str(raised.value) == says


@pytest.mark.parametrize("returned", [None, "part-0"], ids=["none", "text"])
def test_a_reader_that_returns_no_list_of_splits_is_named(returned):
    class Wrong(CollectionSource):
        def create_reader(self, context):
            reader = super().create_reader(context)
            reader.snapshot = lambda: returned
            return reader

    flow = sw.Pipeline("wrong")
    flow.source(Wrong([1])).sink(DiscardSink())
    with pytest.raises(PluginError, match=r"Reader\.snapshot\(\) returned .*; it must return a list of splits"):
        flow.run(checkpoint_interval="1h", restart="none")
