"""What may be declared as a state, and what backends are told of it."""

from dataclasses import replace

import pytest

from sluiceway.errors import StateError
from sluiceway.functions import AggregateFunction, ReduceFunction
from sluiceway.serializers import PickleSerializer
from sluiceway.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateMeta,
    TableKind,
    TableSchema,
    ValueStateDescriptor,
)


def add(a, b):
    return a + b


class Adding(ReduceFunction[int]):
    def reduce(self, value1, value2):
        return value1 + value2


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


# ---- declarations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            ("value_state", ValueStateDescriptor("s", int)),
            ("list_state", ListStateDescriptor("s", int)),
            "as value state of int, and as list state of int",
        ),
        (
            ("value_state", ValueStateDescriptor("s", int)),
            ("value_state", ValueStateDescriptor("s", str)),
            "as value state of int, and as value state of str",
        ),
        (
            ("value_state", ValueStateDescriptor("s")),
            ("value_state", ValueStateDescriptor("s", str)),
            "as value state of anything, and as value state of str",
        ),
        (
            ("value_state", ValueStateDescriptor("s", int)),
            ("reducing_state", ReducingStateDescriptor("s", int, reduce=add)),
            "as value state of int, and as reducing state of int",
        ),
        (
            ("map_state", MapStateDescriptor("s", int, key_type=str)),
            ("map_state", MapStateDescriptor("s", int, key_type=bytes)),
            "as map state of str to int, and as map state of bytes to int",
        ),
    ],
)
def test_one_name_is_one_state(store, first, second, message):
    getattr(store, first[0])(first[1])
    with pytest.raises(
        StateError, match=f"^state 's' is declared twice: {message}. Give one of them another name$"
    ):
        getattr(store, second[0])(second[1])


def test_each_kind_wants_its_descriptor(store):
    with pytest.raises(StateError, match="list state is declared by a ListStateDescriptor, not by Val"):
        store.list_state(ValueStateDescriptor("s"))


@pytest.mark.parametrize("wrong", [None, 5, Adding, Mean])
def test_descriptors_want_functions_and_no_classes(wrong):
    with pytest.raises(TypeError, match=r"ReducingStateDescriptor\('s'\) needs reduce=, a function of two values"):
        ReducingStateDescriptor("s", reduce=wrong)
    with pytest.raises(
        TypeError, match=r"AggregatingStateDescriptor\('s'\) needs aggregate=, an AggregateFunction"
    ):
        AggregatingStateDescriptor("s", aggregate=wrong)


@pytest.mark.parametrize("descriptor", [ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor])
def test_descriptors_want_a_name(descriptor):
    with pytest.raises(TypeError, match=rf"^{descriptor.__name__}: the name of a state is a str, not 3"):
        descriptor(3)
    with pytest.raises(ValueError, match=rf"^{descriptor.__name__}: a state needs a name"):
        descriptor("")
    with pytest.raises(
        ValueError, match=rf"^{descriptor.__name__}: 'a\\ud800' has characters that UTF-8 does not"
    ):
        descriptor("a\ud800")


def test_the_types_of_a_map_cannot_be_mixed_up():
    says = r"keys by name: MapStateDescriptor\('s', int, key_type=list\[str\]\)$"
    with pytest.raises(TypeError, match=says):
        MapStateDescriptor("s", list[str], int)
    assert replace(MapStateDescriptor("s", int, key_type=str), name="t") == MapStateDescriptor(
        "t", int, key_type=str
    )


def test_a_function_that_would_never_be_opened_is_refused(store):
    class Opened(Adding):
        def open(self, context):
            pass

    class OpenedMean(Mean):
        def open(self, context):
            pass

    with pytest.raises(StateError, match=r"function of state 's' has its own open\(\)"):
        store.reducing_state(ReducingStateDescriptor("s", reduce=Opened()))
    with pytest.raises(StateError, match=r"function of state 't' has its own open\(\)"):
        store.aggregating_state(AggregatingStateDescriptor("t", aggregate=OpenedMean()))


# ---- what backends are told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("descriptor", "kind", "type_name", "serializer"),
    [
        (ValueStateDescriptor("s"), TableKind.VALUE, "", "pickle"),
        (ValueStateDescriptor("s", int), TableKind.VALUE, "int", "msgspec"),
        (ValueStateDescriptor("s", Adding), TableKind.VALUE, "Adding", "pickle"),
        (ListStateDescriptor("s"), TableKind.VALUE, "", "pickle"),
        (ListStateDescriptor("s", int), TableKind.VALUE, "list[int]", "msgspec"),
        (MapStateDescriptor("s", int), TableKind.MAP, "", "pickle"),
        (MapStateDescriptor("s", int, key_type=str), TableKind.MAP, "dict[str, int]", "msgspec"),
        (ReducingStateDescriptor("s", int, reduce=add), TableKind.VALUE, "int", "msgspec"),
        (
            AggregatingStateDescriptor("s", float | None, aggregate=Mean()),
            TableKind.VALUE,
            "float | None",
            "msgspec",
        ),
    ],
)
def test_schema_of_a_descriptor(descriptor, kind, type_name, serializer):
    schema = TableSchema.of(descriptor)
    assert replace(schema.meta, schema=None) == StateMeta("s", kind, serializer, 1, type_name)
    assert (schema.meta.schema is None) is (serializer == "pickle")
    assert schema.serializer.name == serializer


def test_map_entries_are_serialized_as_pairs():
    serializer = TableSchema.of(MapStateDescriptor("s", list[int], key_type=str)).serializer
    assert serializer.dumps(("a", [1])) == b"\x92\xa1a\x91\x01"
    assert serializer.loads(serializer.dumps(("a", [1]))) == ("a", [1])


def test_an_incompatible_snapshot_is_refused_with_old_and_new():
    schema = TableSchema.of(ValueStateDescriptor("s", int))
    assert schema.reader_for(schema.meta, "op") is schema.serializer
    with pytest.raises(StateError) as caught:
        schema.reader_for(replace(schema.meta, type_name="str", serializer="quipu", version=4), "op")
    assert str(caught.value) == (
        "state 's' of operator 'op' cannot be restored: the snapshot holds a value table of str (serializer "
        "'quipu', version 4), the job declares a value table of int (serializer 'msgspec', version 1). Declare it "
        "as it was, give the new one another name, or start without the snapshot"
    )


def test_an_older_version_is_read_where_the_serializer_can():
    class Newer(PickleSerializer):
        version = 2

        def reader_for(self, version):
            return PickleSerializer() if version == 1 else super().reader_for(version)

    schema = TableSchema(StateMeta("s", TableKind.VALUE, "pickle", 2), Newer())
    assert type(schema.reader_for(replace(schema.meta, version=1), "op")) is PickleSerializer
    assert schema.reader_for(schema.meta, "op") is schema.serializer
    with pytest.raises(StateError, match="version 3"):
        schema.reader_for(replace(schema.meta, version=3), "op")
