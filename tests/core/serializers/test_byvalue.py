"""Classes of a script that are read in a process without the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRITE = """
import sys
from sluiceway.serializers.byvalue import dumps_by_value
open(sys.argv[1], "wb").write(dumps_by_value({of}))
"""
READ = """
import pickle, sys
import msgspec
of = pickle.load(open(sys.argv[1], "rb"))
for text in sys.argv[2:]:
    try:
        print(msgspec.json.decode(text, type=of))
    except msgspec.ValidationError as error:
        print(error)
print(of.__module__, of.__qualname__, of.__total__, sorted(of.__required_keys__), sorted(of.__optional_keys__))
"""

INHERITED = """
from typing import NotRequired, TypedDict
class Base(TypedDict):
    a: int
    b: NotRequired[str]
class Row(Base, total=False):
    c: "list[Base]"
"""


def read(tmp_path: Path, script: str, of: str, *texts: str) -> list[str]:
    """Write a type in one process, and decode texts with it in another."""
    file = str(tmp_path / "type.pickle")
    subprocess.run([sys.executable, "-c", script + WRITE.format(of=of), file], check=True)
    done = subprocess.run([sys.executable, "-c", READ, file, *texts], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_a_typed_dict_keeps_what_it_requires(tmp_path: Path) -> None:
    whole = '{"a": 1, "b": "x", "c": [{"a": 2}]}'
    assert read(tmp_path, INHERITED, "Row", whole, '{"b": "x"}', '{"a": 1}', '{"a": 1, "c": [{}]}') == [
        "{'a': 1, 'b': 'x', 'c': [{'a': 2}]}",
        "Object missing required field `a`",
        "{'a': 1}",
        "Object missing required field `a` - at `$.c[0]`",
        "__main__ Row False ['a'] ['b', 'c']",
    ]


def test_hints_that_are_texts_are_resolved_where_they_were_written(tmp_path: Path) -> None:
    script = f"from __future__ import annotations\nfrom datetime import date as day\n{INHERITED}    d: day\n"
    assert read(tmp_path, script, "Row", '{"a": 1, "b": "x", "c": [], "d": "tomorrow"}')[0] == (
        "Invalid RFC3339 encoded date - at `$.d`"
    )


def test_a_generic_one_takes_arguments(tmp_path: Path) -> None:
    script = """
from typing import Generic, TypedDict, TypeVar
T = TypeVar("T")
class Row(TypedDict, Generic[T]):
    a: T
"""
    assert read(tmp_path, script, "Row[int].__origin__", '{"a": "x"}')[0] == "{'a': 'x'}"


def test_one_of_typing_extensions(tmp_path: Path) -> None:
    pytest.importorskip("typing_extensions", reason="typing_extensions is not installed")
    script = "from typing_extensions import TypedDict\nclass Row(TypedDict):\n    a: int\n"
    assert read(tmp_path, script, "Row", '{"a": "x"}')[0] == "Expected `int`, got `str` - at `$.a`"


def test_a_class_inside_another_keeps_its_name(tmp_path: Path) -> None:
    """Which is part of the hash of a key: the same key has the same key group in each process."""
    script = """
from dataclasses import dataclass
class Site:
    @dataclass(frozen=True)
    class Meter:
        number: int
def made():
    @dataclass(frozen=True)
    class Meter:
        number: int
    return Meter
"""
    write = """
import sys
from sluiceway.keygroups import stable_hash
from sluiceway.serializers.byvalue import dumps_by_value
keys = [Site.Meter(1), made()(1)]
open(sys.argv[1], "wb").write(dumps_by_value([(key, stable_hash(key)) for key in keys]))
"""
    read = """
import pickle, sys
from sluiceway.keygroups import stable_hash
print([stable_hash(key) == hashed for key, hashed in pickle.load(open(sys.argv[1], "rb"))])
"""
    file = str(tmp_path / "keys.pickle")
    subprocess.run([sys.executable, "-c", script + write, file], check=True)
    done = subprocess.run([sys.executable, "-c", read, file], check=True, capture_output=True, text=True)
    assert done.stdout == "[True, True]\n"


RETURN = """
import pickle, subprocess, sys
from sluiceway.serializers.byvalue import dumps_by_value
CHILD = '''
import pickle, sys
from sluiceway.serializers.byvalue import dumps_by_value
sys.stdout.buffer.write(dumps_by_value(pickle.load(sys.stdin.buffer)))
'''
child = subprocess.run([sys.executable, "-c", CHILD], input=dumps_by_value(RECORDS), capture_output=True)
assert child.returncode == 0, child.stderr.decode()
BACK = pickle.loads(child.stdout)
for record, came_back in zip(RECORDS, BACK, strict=True):
    assert type(came_back) is type(record), type(came_back)
    print(came_back)
"""


def returned(script: str) -> list[str]:
    """Send the ``RECORDS`` of a script to a process without it, which sends them back; show what comes back."""
    done = subprocess.run([sys.executable, "-c", script + RETURN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_records_with_slots_come_back() -> None:
    script = """
from dataclasses import dataclass
from typing import NamedTuple
@dataclass(slots=True)
class Point:
    x: int
@dataclass(slots=True)
class Named(Point):
    name: str
class Empty(Named):
    __slots__ = ()
class Open(Point):
    def __repr__(self): return f"Open{vars(self)}"
class Private:
    __slots__ = ("__secret", "__dict__")
    def __init__(self, secret): self.__secret = self.also = secret
    def __repr__(self): return f"Private({self.__secret}, {vars(self)})"
class Pair(NamedTuple):
    left: int
class Left(Pair):
    __slots__ = ()
opened = Open(3)
opened.y = 4
RECORDS = [Point(1), Named(1, "a"), Empty(2, "b"), opened, Private(5), Pair(6), Left(7)]
"""
    assert returned(script) == [
        "Point(x=1)",
        "Named(x=1, name='a')",
        "Empty(x=2, name='b')",
        "Open{'y': 4}",
        "Private(5, {'also': 5})",
        "Pair(left=6)",
        "Left(left=7)",
    ]


def test_structs_come_back() -> None:
    script = """
from typing import ClassVar, Generic, TypeVar
import msgspec
T = TypeVar("T")
class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 2
class Named(Point, frozen=True, kw_only=True, rename="camel", tag="named"):
    full_name: str
    tags: list[str] = msgspec.field(default_factory=list)
    kind: ClassVar[str] = "point"
    def moved(self): return Named(self.x + 1, full_name=self.full_name + self.kind)
class Checked(msgspec.Struct):
    number: int
    next: "Checked | None" = None
    def __post_init__(self):
        self.number = min(self.number, 9)
class Box(msgspec.Struct, Generic[T]):
    held: T
class Shown(msgspec.Struct):
    text: str
    def __reduce__(self):
        named = Named(1, full_name="a")
        return Shown, (f"{self.text} {Checked(10).number} {named.moved().full_name} {msgspec.to_builtins(named)}",)
RECORDS = [Point(1), Named(1, full_name="a"), Checked(3, Checked(4)), Box([5]), Shown("")]
"""
    *records, shown = returned(script)
    assert records == [
        "Point(x=1, y=2)",
        "Named(x=1, y=2, full_name='a', tags=[])",
        "Checked(number=3, next=Checked(number=4, next=None))",
        "Box(held=[5])",
    ]
    assert shown.count("9 apoint {'type': 'named', 'x': 1, 'y': 2, 'fullName': 'a', 'tags': []}") == 2, shown


def test_enums_with_aliases_and_named_flags_come_back() -> None:
    script = """
from enum import Enum, Flag
class Color(Enum):
    RED = 1
    CRIMSON = 1
    BLUE = 2
    def other(self): return Color.BLUE if self is Color.CRIMSON else Color.RED
class Access(Flag):
    READ = 1
    WRITE = 2
    ALL = READ | WRITE
class Shown:
    def __init__(self, text): self.text = text
    def __str__(self): return self.text
    def __reduce__(self):
        return Shown, (f"{list(Color.__members__)} {Color.CRIMSON.other()} {Access(3) is Access.ALL}",)
RECORDS = [Color.RED, Color.BLUE, Access.ALL, Access.WRITE, Access(0), Shown("")]
"""
    *records, shown = returned(script)
    assert records == ["Color.RED", "Color.BLUE", "Access.ALL", "Access.WRITE", "Access(0)"]
    assert shown == "['RED', 'CRIMSON', 'BLUE'] Color.BLUE True"


def test_records_with_cached_properties_come_back() -> None:
    script = """
from dataclasses import dataclass
from functools import cached_property
@dataclass
class Square:
    side: int
    @cached_property
    def area(self): return Square(self.side * self.side)
    def __reduce__(self): return Square, (self.area.side,)
RECORDS = [Square(2)]
"""
    assert returned(script) == ["Square(side=16)"]  # once in each of the two processes


def test_records_of_classes_with_keywords_come_back() -> None:
    """Of the keywords there is only what the bases have made of them; the bases still want them of others."""
    script = """
from abc import ABC
from dataclasses import dataclass
class Unit(ABC):
    known = {}
    def __init_subclass__(cls, *, sign, **others):
        super().__init_subclass__(**others)
        cls.sign = sign
        Unit.known[sign] = cls
@dataclass
class Metre(Unit, sign="m"):
    count: int
    def __reduce__(self):
        assert Unit.known["m"] is Metre and sorted(Unit.known) == ["km", "m"]
        try:
            type("Other", (Unit,), {})
        except TypeError:
            return type(self), (self.count + 1,)
@dataclass
class Kilometre(Metre, sign="km"):
    def __repr__(self): return f"{self.count} {self.sign}"
class Slotted:
    __slots__ = ("value",)
    def __init_subclass__(cls, sign): cls.sign = sign
class Second(Slotted, sign="s"):
    __slots__ = ()
    def __repr__(self): return f"{self.value} {self.sign}"
second = Second()
second.value = 3
RECORDS = [Metre(1), Kilometre(1), second]
"""
    assert returned(script) == ["Metre(count=3)", "3 km", "3 s"]


def test_records_of_classes_whose_metaclass_wants_keywords_come_back() -> None:
    """The last metaclass that wants none makes them: without ABCMeta, isinstance() would not work."""
    script = """
from abc import ABCMeta, abstractmethod
class Registered(ABCMeta):
    def __new__(cls, name, bases, body, *, sign):
        return super().__new__(cls, name, bases, body)
    def __init__(cls, name, bases, body, *, sign):
        super().__init__(name, bases, body)
        cls.sign = sign
class Unit(metaclass=Registered, sign=""):
    @abstractmethod
    def show(self): ...
class Metre(Unit, sign="m"):
    __slots__ = ("count",)
    def show(self): return f"{self.count} {self.sign}"
    def __repr__(self): return f"{self.show()} {isinstance(self, Unit)} {type(type(self)).__name__}"
metre = Metre()
metre.count = 2
RECORDS = [metre]
"""
    assert returned(script) == ["2 m True Registered"]


def test_type_parameters_come_back() -> None:
    """Annotations of functions and bases of classes refer to them."""
    script = """
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, TypeVarTuple
P, R, Ts = ParamSpec("P"), TypeVar("R"), TypeVarTuple("Ts")
def logged(function: Callable[P, R]) -> Callable[P, R]:
    def call(*args: P.args, **keywords: P.kwargs) -> R: return function(*args, **keywords)
    return call
@logged
def doubled(number: int) -> int: return 2 * number
class Row(Generic[*Ts]):
    def __init__(self, *parts: *Ts): self.parts = parts
    def __repr__(self): return f"Row{self.parts}"
    def __reduce__(self): return Row, tuple(map(doubled, self.parts))
class Step(Generic[P]):
    def __init__(self, variables=""): self.variables = variables
    def __repr__(self): return f"Step {self.variables}"
    def __reduce__(self):
        return Step, (f"{self.variables}{Step.__parameters__[0] is P} {Step[[int]].__args__} ",)
RECORDS = [Row(1, 2), Step()]
"""
    assert returned(script) == ["Row(4, 8)", "Step True ((<class 'int'>,),) True ((<class 'int'>,),) "]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements need Python 3.12")
def test_type_aliases_come_back() -> None:
    script = """
from dataclasses import dataclass
from typing import get_type_hints
type Cents = int
type Json = dict[str, Json] | list[Json] | Cents
type Pair[T] = tuple[T, T]
type Unknown = list[Missing]
@dataclass
class Order:
    cents: Cents
    pair: Pair[int]
    json: Json
    unknown: Unknown
    shown: str = ""
    def __repr__(self): return self.shown
    def __reduce__(self):
        cents, pair, json, unknown, shown = get_type_hints(Order).values()
        told = [cents.__value__, pair.__origin__.__value__[str], json.__value__.__args__[1].__args__ == (Json,)]
        return Order, (1, (2, 2), [3], [], f"{self.shown}{cents} {pair} {told} ")
RECORDS = [Order(1, (2, 2), [3], [])]
"""
    shown = "Cents Pair[int] [<class 'int'>, tuple[str, str], True]"
    assert returned(script) == [f"{shown} {shown} "]
