"""Mistakes of serializers of plugins and programs, each refused with the serializer's name."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import CheckpointFailedError, SerializationError
from sluiceway.operators import raw_state
from sluiceway.serializers import PickleSerializer, Serializer, register_serializer, registry, serializer_for
from sluiceway.serializers.edges import edge_serializer

HALF = Fraction(1, 2)


class Ratios(Serializer):
    """Fractions as text, with one method replaced by each test."""

    name = "ratio"
    version = 1

    def dumps(self, value: Any) -> Any:
        return str(value).encode()

    def loads(self, data: bytes) -> Any:
        return Fraction(data.decode())

    def for_type(self, type_hint: Any) -> Any:
        return self if type_hint is Fraction else None


def raises(*_: object) -> Any:
    raise ValueError("boom")


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FORMATS", {})


def ratios(**methods: Callable[..., Any]) -> Serializer:
    kind = type("Ratios", (Ratios,), methods)
    register_serializer(kind())
    return serializer_for(Fraction)


@pytest.mark.parametrize(
    ("dumps", "said"),
    [
        (raises, "the serializer 'ratio' cannot write a value of type Fraction: ValueError: boom"),
        (lambda self, value: sys.exit(3), "cannot write a value of type Fraction: SystemExit: 3"),
        (lambda self, value: str(value), "'ratio' has to return bytes, not str, for a value of type Fraction"),
        (lambda self, value: None, "'ratio' has to return bytes, not None, for a value of type Fraction"),
    ],
)
def test_what_dumps_does_wrong(dumps: Any, said: str) -> None:
    serializer = ratios(dumps=dumps)
    with pytest.raises(SerializationError, match=said):
        serializer.dumps(HALF)
    with pytest.raises(SerializationError, match=said):
        serializer.dumps_all([HALF])
    with pytest.raises(SerializationError, match=said):
        edge_serializer(Fraction, registry.registered_serializers()).dumps([HALF])


def test_other_kinds_of_bytes_are_taken() -> None:
    serializer = ratios(dumps=lambda self, value: memoryview(str(value).encode()))
    assert serializer.dumps(HALF) == b"1/2"
    assert [type(data) for data in serializer.dumps_all([HALF])] == [bytes]


def test_dumps_all_that_loses_a_value() -> None:
    serializer = ratios(dumps_all=lambda self, values: [b"1/2"])
    with pytest.raises(SerializationError, match="one for each of 2 values, and returned a list of 1"):
        serializer.dumps_all([HALF, HALF])


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        (raises, "the serializer 'ratio' cannot read 3 bytes: ValueError: boom"),
        (lambda self, data: sys.exit(3), "cannot read 3 bytes: SystemExit: 3"),
        (lambda self, data: 0.5, "'ratio' for Fraction has read a value of type float: its loads"),
        (lambda self, data: None, "'ratio' for Fraction has read a value of type None: its loads"),
    ],
)
def test_what_loads_does_wrong(loads: Any, said: str) -> None:
    serializer = ratios(loads=loads)
    with pytest.raises(SerializationError, match=said):
        serializer.loads(b"1/2")
    edge = edge_serializer(Fraction, registry.registered_serializers())
    with pytest.raises(SerializationError, match=said):
        edge.loads(edge.dumps([HALF]))


def test_an_error_of_the_contract_stays_as_it_is() -> None:
    def refuses(*_: object) -> Any:
        raise SerializationError("a ratio of my own")

    serializer = ratios(dumps=refuses, loads=refuses)
    with pytest.raises(SerializationError, match=r"^a ratio of my own$"):
        serializer.dumps(HALF)
    with pytest.raises(SerializationError, match=r"^a ratio of my own$"):
        serializer.loads(b"")


@pytest.mark.parametrize(
    ("for_type", "said"),
    [
        (raises, r"for_type\(Fraction\) of the serializer 'ratio' has failed: ValueError: boom"),
        (lambda self, hint: True, "has to return a serializer or None: an object of type bool is no serializer"),
        (lambda self, hint: Ratios, "or None: the class Ratios is no serializer: give an instance of it"),
    ],
)
def test_what_for_type_does_wrong(for_type: Any, said: str) -> None:
    with pytest.raises(SerializationError, match=said):
        ratios(for_type=for_type)
    with pytest.raises(SerializationError, match=said):
        edge_serializer(Fraction, registry.registered_serializers())


def test_a_reader_for_another_version() -> None:
    class First(Ratios):
        version = 1

    second = ratios(reader_for=lambda self, version: First() if version == 1 else self if version == 2 else 7)
    first = second.reader_for(1)
    assert first is not None
    assert (first.version, first.loads(b"1/2")) == (1, HALF)
    assert second.reader_for(2) is second, "what is kept as it is now is read as it is"
    with pytest.raises(SerializationError, match=r"reader_for\(3\) of the serializer 'ratio' has to .* not int"):
        second.reader_for(3)


def test_built_in_serializers_are_given_out_as_they_are() -> None:
    kept = ratios(for_type=lambda self, hint: PickleSerializer())
    assert type(kept) is PickleSerializer


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (Ratios, TypeError, "the class Ratios is no serializer: give an instance of it"),
        (HALF, TypeError, "an object of type Fraction is no serializer"),
        (type("Ratios", (Ratios,), {"name": None})(), TypeError, "has the name None and the version 1"),
        (type("Ratios", (Ratios,), {"version": "1"})(), TypeError, "has the name 'ratio' and the version '1'"),
        (
            type("Ratios", (Ratios,), {"version": -1})(),
            ValueError,
            "version -1 of the serializer 'ratio'",
        ),
        (type("Ratios", (Ratios,), {"version": 70_000})(), ValueError, "version 70000 of the serializer 'ratio'"),
        (type("Ratios", (Ratios,), {"name": "ä" * 128})(), ValueError, "is not of 1 to 255 bytes: 'ää"),
        (type("Ratios", (Ratios,), {"name": ""})(), ValueError, "is not of 1 to 255 bytes: ''"),
    ],
)
def test_what_cannot_be_registered(given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        register_serializer(given)
    assert registry.registered_serializers() == ()


def test_a_job_whose_state_cannot_be_written_names_the_serializer(tmp_path: Any) -> None:
    ratios(dumps=raises)

    class Last(sw.KeyedProcessFunction[int, Fraction, Fraction]):
        def open(self, ctx: Any) -> None:
            self.last = ctx.get_state(sw.ValueStateDescriptor("last", Fraction))

        def process_element(self, value: Fraction, ctx: Any) -> Any:
            self.last.update(value)
            yield value

    flow = sw.Pipeline("halves")
    flow.from_collection([HALF]).key_by(lambda ratio: ratio.denominator).process(Last()).collect()
    with pytest.raises(
        CheckpointFailedError, match=r"state 'last' .* the serializer 'ratio' cannot write a value"
    ):
        flow.run(checkpoint_interval=3600, checkpoints=str(tmp_path), restart="none")


def test_raw_state_is_written_alike_with_a_serializer_that_takes_every_type() -> None:
    ratios(for_type=lambda self, hint: self)
    # A serializer may be registered before the module is imported, or after.
    spec = importlib.util.spec_from_file_location("raw_state_imported_late", raw_state.__file__)
    assert spec is not None
    assert spec.loader is not None
    late = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(late)
    kept = late.RawStates("step", 0, 1, None, ())
    kept.begin()
    kept.chunks.chunks.append(b"chunk")
    assert [(taken.serializer, taken.elements) for taken in kept.snapshot()] == [("msgspec", (b"\xc4\x05chunk",))]


def test_pickle_takes_errors_that_fail_to_describe_themselves() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Record:
        def __reduce__(self) -> Any:
            raise Mute

    with pytest.raises(SerializationError, match=r"a value of type .*Record cannot be pickled: .*Mute\. Keep"):
        PickleSerializer().dumps([Record()])
