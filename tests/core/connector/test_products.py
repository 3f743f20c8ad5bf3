"""Connectors that create the wrong thing, as by a method without ``return``."""

import pytest

import sluiceway as sw
from sluiceway.connector import CommittingSinkWriter, SimpleEnumerator, Sink, SinkWriter
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


def source_with(name, value):
    return type("Odd", (CollectionSource,), {name: value})([1])


def sink_with(name, value):
    return type("Odd", (DiscardSink,), {name: value})()


@pytest.mark.parametrize(
    "name",
    ["boundedness", "commits_positions", "max_readers", "seekable", "needs_program", "name", "output_type"],
)
def test_a_property_of_a_source_without_its_decorator_is_named(name):
    with pytest.raises(PluginError, match=rf"Odd\.{name} is a method; .*@property"):
        sw.Pipeline("odd").source(source_with(name, lambda self: False))


@pytest.mark.parametrize("name", ["guarantee", "max_writers", "commits_once", "follows_input", "input_type"])
def test_a_property_of_a_sink_without_its_decorator_is_named(name):
    with pytest.raises(PluginError, match=rf"Odd\.{name} is a method; .*@property"):
        sw.Pipeline("odd").from_collection([1]).sink(sink_with(name, lambda self: False))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("boundedness", "bounded"),
        ("boundedness", None),
        ("max_readers", "1"),
        ("max_readers", 0),
        ("max_readers", True),
        ("max_readers", 2.0),
    ],
)
def test_a_property_of_a_source_of_the_wrong_kind_is_named(name, value):
    with pytest.raises(PluginError, match=rf"Odd\.{name} is {value!r}; it must be a"):
        sw.Pipeline("odd").source(source_with(name, value))


@pytest.mark.parametrize(
    ("name", "value"), [("guarantee", "exactly-once"), ("max_writers", "1"), ("max_writers", -1)]
)
def test_a_property_of_a_sink_of_the_wrong_kind_is_named(name, value):
    with pytest.raises(PluginError, match=rf"Odd\.{name} is {value!r}; it must be a"):
        sw.Pipeline("odd").from_collection([1]).sink(sink_with(name, value))


class Waiting(SinkWriter):
    def write(self, values, timestamps):
        pass

    def blocked(self):
        return True


def test_a_writer_that_says_that_it_is_blocked_but_not_for_what_is_named():
    flow = sw.Pipeline("waits")
    flow.from_collection([1]).sink(
        type("WaitingSink", (Sink,), {"create_writer": lambda self, context: Waiting()})()
    )
    with pytest.raises(PluginError, match=r"Waiting\.blocked\(\) returned True; it must return a Wait"):
        flow.run()


class Part:
    def __init__(self, count):
        self.count = count


class Numbered(Part):
    split_id = 7


class Undecorated(Part):
    def split_id(self):
        return "all"


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (Part(0), "a Part with no split_id"),
        ("all", "a str with no split_id"),
        (Numbered(0), "a Numbered with the split_id 7"),
        (Undecorated(0), r"an? Undecorated with the split_id <bound method .*: write @property above it"),
    ],
    ids=["without", "text", "number", "method"],
)
def test_what_is_no_split_is_named_when_it_is_assigned(split, says):
    class Wrong(CollectionSource):
        def create_enumerator(self, context, restored=None):
            return SimpleEnumerator(context, [split])

    flow = sw.Pipeline("wrong")
    flow.source(Wrong([1])).sink(DiscardSink())
    with pytest.raises(PluginError, match=rf"the enumerator of Wrong assigned {says}"):
        flow.run(restart="none")
