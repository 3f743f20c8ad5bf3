"""Classes of scripts travel with their values, also when somebody has looked at them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

from sluiceway.graph.check.pickling import find_obstacle
from sluiceway.runtime.messages.pickling import dump, load
from sluiceway.serializers.base import PICKLE


def tuple_class() -> Any:
    class Pair(NamedTuple):
        key: str
        value: int

    return Pair


def data_class() -> Any:
    @dataclass
    class Pair:
        key: str
        value: int

    return Pair


@pytest.mark.parametrize("make", [tuple_class, data_class])
@pytest.mark.parametrize("looked_at", [False, True])
def test_classes_that_cannot_be_imported_are_pickled_with_their_values(make: Any, looked_at: bool) -> None:
    kind = make()
    if looked_at:
        msgspec.json.Decoder(list[kind])
        assert "__msgspec_cache__" in vars(kind)
    for data in (PICKLE.dumps([kind("a", 1)]), dump([kind("a", 1)])):
        (back,) = load(data)
        assert (type(back).__name__, back.key, back.value) == ("Pair", "a", 1)
    # What was noted is still there, and is noted anew where it is missing.
    assert ("__msgspec_cache__" in vars(kind)) is looked_at
    sent: Any = load(dump(kind))
    assert msgspec.convert({"key": "a", "value": 1} if make is data_class else ["a", 1], sent).value == 1
    assert find_obstacle(lambda: kind) is None


def test_fields_without_a_default_have_none_when_they_are_back() -> None:
    kind = data_class()
    back: Any = load(dump(kind))
    assert [field.default for field in dataclasses.fields(back)] == [dataclasses.MISSING] * 2
    assert dataclasses.fields(back)[0].default_factory is dataclasses.MISSING
    with pytest.raises(msgspec.ValidationError, match="missing required field `key`"):
        msgspec.convert({"value": 1}, back)


def test_functions_keep_the_names_of_their_files() -> None:
    def outer() -> Any:
        return lambda: None

    copy = load(dump(outer))
    assert (copy.__code__.co_filename, copy().__code__.co_filename) == (__file__, __file__)
