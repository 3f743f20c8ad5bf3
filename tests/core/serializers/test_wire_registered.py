"""Records of a type that a serializer was registered for."""

from fractions import Fraction
from typing import Any

import pytest

from sluiceway.elements import Batch
from sluiceway.errors import CorruptStreamError, SerializationError
from sluiceway.network.element_codec import decode_element, encode_batch
from sluiceway.serializers import Serializer
from sluiceway.serializers.edges import edge_serializer


class Ratios(Serializer):
    name = "ratio"

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.asked = 0

    def dumps(self, value: Any) -> bytes:
        self.asked += 1
        return str(value).encode()

    def loads(self, data: bytes) -> Any:
        return Fraction(data.decode())

    def for_type(self, type_hint: Any) -> Serializer | None:
        return self if type_hint is Fraction else None


class Own(Fraction):
    """A subclass, which the serializer would not keep."""


def frame(values: list[Any], serializer: Serializer) -> memoryview:
    return memoryview(b"".join(encode_batch(Batch(values), serializer)))


def test_each_record_goes_through_it() -> None:
    ratios = Ratios()
    serializer = edge_serializer(Fraction, [ratios])
    values = [Fraction(i, 3) for i in range(5)]
    assert decode_element(frame(values, serializer), serializer, "test") == Batch(values)
    assert ratios.asked == 5
    assert decode_element(frame([], serializer), serializer, "test") == Batch([])


@pytest.mark.parametrize("odd", [Own(1, 2), 1, None, "1/2"])
def test_a_batch_with_a_record_of_another_class_goes_the_usual_way(odd: Any) -> None:
    ratios = Ratios()
    serializer = edge_serializer(Fraction, [ratios])
    back = serializer.loads(serializer.dumps([Fraction(1, 3), odd]))
    assert back == [Fraction(1, 3), odd]
    assert type(back[1]) is type(odd)
    assert ratios.asked == 0


def test_another_version_is_refused_by_name() -> None:
    sent = frame([Fraction(1, 3)], edge_serializer(Fraction, [Ratios(2)]))
    for other in (edge_serializer(Fraction, [Ratios(1)]), edge_serializer(Fraction)):
        with pytest.raises(
            CorruptStreamError,
            match=r"channel 7: .* written by version 2 of the serializer 'ratio', which is not what this process"
            r" has for them: have the same plugins, in the same versions, in every process",
        ):
            decode_element(sent, other, "channel 7")


def test_one_that_fails_says_so() -> None:
    class Broken(Ratios):
        def dumps(self, value: Any) -> bytes:
            raise SerializationError(f"{value} has no bytes")

    with pytest.raises(SerializationError, match="1/3 has no bytes"):
        edge_serializer(Fraction, [Broken()]).dumps([Fraction(1, 3)])


def test_a_broken_list_is_corrupt() -> None:
    serializer = edge_serializer(Fraction, [Ratios()])
    sent = bytes(frame([Fraction(1, 3)], serializer))
    with pytest.raises(CorruptStreamError, match="are no list of records of <serializer ratio 1>"):
        decode_element(memoryview(sent[:-1]), serializer, "channel 7")


def test_a_hint_that_is_no_class_is_the_serializers_own_business() -> None:
    class Any_(Ratios):
        def for_type(self, type_hint: Any) -> Serializer | None:
            return self if type_hint == list[Fraction] else None

        def dumps(self, value: Any) -> bytes:
            return " ".join(map(str, value)).encode()

        def loads(self, data: bytes) -> Any:
            return [Fraction(part) for part in data.decode().split()]

    serializer = edge_serializer(list[Fraction], [Any_()])
    values = [[Fraction(1, 2), Fraction(1, 3)], []]
    assert serializer.loads(serializer.dumps(values)) == values
