"""Keys of the user's own types, and what cannot be a key: each is named with what to use instead."""

import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from sluiceway.errors import SluicewayError, UnstableKeyError
from sluiceway.keygroups import register_key_type, stable_hash


@dataclass(frozen=True)
class Place:
    city: str
    at: Any


# ---- types of the user's own -------------------------------------------------------------------------------


class Account:
    def __init__(self, number, name):
        self.number = number
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Account) and self.number == other.number

    def __hash__(self):
        return hash(self.number)

    def __repr__(self):
        return f"Account({self.number})"


class SelfMade(Account):
    def __stable_key__(self):
        return ("account", self.number)


def test_a_class_with_a_stable_key_method_is_a_key():
    assert stable_hash(SelfMade(1, "x")) == stable_hash(SelfMade(1, "y")) == stable_hash(("account", 1))
    assert stable_hash((SelfMade(1, "x"), 2)) == stable_hash((("account", 1), 2))


def test_an_error_in_a_stable_key_method_is_the_users():
    class Broken:
        def __stable_key__(self):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        stable_hash(Broken())


def test_a_stable_key_that_is_unstable_itself_is_named():
    class Wrong:
        def __stable_key__(self):
            return [1]

    with pytest.raises(UnstableKeyError, match=r"because of its part \[1\]: list is not hashable"):
        stable_hash(Wrong())


def test_a_foreign_class_can_be_registered_also_after_it_was_refused():
    class Foreign(Account):
        pass

    class Child(Foreign):
        pass

    with pytest.raises(UnstableKeyError):
        stable_hash(Child(1, "x"))
    register_key_type(Foreign, lambda account: account.number)
    assert stable_hash(Foreign(1, "x")) == stable_hash(Child(1, "y")) == stable_hash(1)


# ---- what cannot be a key ----------------------------------------------------------------------------------


class Plain:
    def __repr__(self):
        return "Plain()"


@dataclass
class Loose:
    a: int


@dataclass(frozen=True, eq=False)
class ByAddress:
    a: int


@dataclass(frozen=True)
class HashedByHand:
    a: int

    def __hash__(self):
        return 5


class LooseStruct(msgspec.Struct):
    a: int


class AddressStruct(msgspec.Struct, frozen=True, eq=False):
    a: int


class StructHashedByHand(msgspec.Struct, frozen=True):
    a: int

    def __hash__(self):
        return 5


class Caseless(str):
    __slots__ = ()

    def __eq__(self, other):
        return self.lower() == other.lower()

    def __hash__(self):
        return hash(self.lower())


@dataclass(unsafe_hash=True)
class Changeable:
    a: int


class HashedMember(enum.Enum):
    A = 1

    def __hash__(self):
        return 5


class BadRepr:
    def __repr__(self):
        raise RuntimeError("no")


UNSTABLE = [
    (["a"], r"^\['a'\] \(list\) cannot be a key: list is not hashable\. Use tuple\(key\)\.$"),
    ({"a": 1}, r"\(dict\).*Use tuple\(sorted\(key\.items\(\)\)\)"),
    ({1}, r"\(set\).*Use frozenset\(key\)"),
    (bytearray(b"x"), r"\(bytearray\).*Use bytes\(key\)"),
    (memoryview(b"x"), r"\(memoryview\).*Use bytes\(key\)"),
    (float("nan"), r"^nan \(float\) cannot be a key: NaN is not equal to itself.*filter such records out"),
    (Decimal("NaN"), "NaN is not equal to itself"),
    (Decimal("sNaN"), "NaN is not equal to itself"),
    (complex(0, float("nan")), "NaN is not equal to itself"),
    (("a", [1]), r"^\('a', \[1\]\) \(tuple\) cannot be a key, because of its part \[1\]: list is not hashable"),
    (frozenset({Plain()}), r"because of its part Plain\(\): Plain is hashed by its address"),
    (Plain(), r"^Plain\(\) \(Plain\) .*hashed by its address.*__stable_key__\(\).*register_key_type"),
    (Plain, r"Use its name: key\.__qualname__"),
    (len, r"Use its name: key\.__qualname__"),
    (pytest.fixture, r"Use its name: key\.__qualname__"),
    (Account(7, "x"), r"^Account\(7\) \(Account\) .*__hash__ of its own.*__stable_key__"),
    (Caseless("A"), "__hash__ of its own"),
    (Loose(1), r"Loose is not hashable\. Make it @dataclass\(frozen=True\)\."),
    (ByAddress(1), "hashed by its address"),
    (HashedByHand(1), "__hash__ of its own"),
    (Place(1, [2]), r"because of its part \[2\]"),
    (Changeable(1), "__hash__ of its own"),
    (HashedMember.A, "__hash__ of its own"),
    (["x" * 50], "x{50}"),
    (LooseStruct(1), r"LooseStruct is not hashable\. Make it a Struct with frozen=True\."),
    (AddressStruct(1), "cannot be a key"),
    (StructHashedByHand(1), "__hash__ of its own"),
    (BadRepr(), "cannot be a key"),
    (["x" * 10_000], r"^.{0,200}$"),
]


@pytest.mark.parametrize(("key", "message"), UNSTABLE, ids=lambda v: type(v).__name__)
def test_unstable_keys_are_named_with_what_to_use_instead(key, message):
    with pytest.raises(UnstableKeyError, match=message) as caught:
        stable_hash(key)
    assert isinstance(caught.value, SluicewayError)
    assert isinstance(caught.value, TypeError)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
