"""Descriptors, with which users declare state."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, overload

from sluiceway.state.ttl import StateTtlConfig
from sluiceway.util.name_hints import Hinting
from sluiceway.util.surrogates import encodable

if TYPE_CHECKING:
    from types import UnionType

    from typing_extensions import TypeVar

    # Who names no type has Any, without having to say so.
    T = TypeVar("T", default=Any)
    K = TypeVar("K", default=Any)
    OUT = TypeVar("OUT", default=Any)
else:
    from typing import TypeVar

    T, K, OUT = TypeVar("T"), TypeVar("K"), TypeVar("OUT")

__all__ = [
    "VOID_NAMESPACE",
    "AggregatingStateDescriptor",
    "BlockStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReducingStateDescriptor",
    "StateDescriptor",
    "SupportsAggregate",
    "SupportsReduce",
    "ValueStateDescriptor",
]

VOID_NAMESPACE: Final = ()
"""The namespace of state that belongs to a key alone."""


@dataclass(frozen=True)
class StateDescriptor(Hinting):
    """Name and content of a state. Subclasses are the five kinds.

    Attributes:
        name: unique within the operator.
        type: the Python type of a value. It chooses the serializer, and the handle refuses values of other types
            (:class:`~sluiceway.DeclaredTypeError`); None allows any value (pickled).
        ttl: time to live of entries of keyed state; None: they do not expire.
        migrate: makes a value (an element of a list, the value of a map's entry) of one that was saved when
            the type was another one. Its argument is plain data: records are dicts of their fields, sets lists,
            enums their values; what was pickled, as without a type, is unchanged. Without it, fields that have
            a default may be added, fields removed or renamed (:class:`~sluiceway.RenamedFrom`), types widened.
    """

    name: str
    type: Any = None
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)
    migrate: Callable[[Any], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"{type(self).__name__}: the name of a state is a str, not {self.name!r:.60}")
        if not self.name:
            raise ValueError(f"{type(self).__name__}: a state needs a name")
        if encodable(self.name) != self.name:
            raise ValueError(f"{type(self).__name__}: {self.name!r:.100} has characters that UTF-8 does not have")
        if self.ttl is not None and not isinstance(self.ttl, StateTtlConfig):
            raise TypeError(
                f"{type(self).__name__}({self.name!r}): ttl takes a StateTtlConfig, as in "
                f"ttl=StateTtlConfig(timedelta(hours=1)), not {self.ttl!r:.60}"
            )
        if self.migrate is not None and not callable(self.migrate):
            raise TypeError(
                f"{type(self).__name__}({self.name!r}): migrate takes a function, not {self.migrate!r:.60}"
            )

    @property
    def expires(self) -> bool:
        """True if entries have a time to live."""
        return self.ttl is not None and self.ttl.is_enabled


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """Descriptor of one value per key. ``default`` is returned before the first update."""

    default: Any = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            type: type[T],
            default: Any = None,
            *,
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            type: Any = None,
            default: Any = None,
            *,
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **more: Any) -> None: ...


class BlockStateDescriptor(ValueStateDescriptor[bytes]):
    """Descriptor of the state of a step in columns: blocks with rows of many keys, as ``bytes``.

    A namespace has few keys, such as one for each key group, and its blocks are assigned, or dropped, together. A
    backend may store a namespace in a file of its own, to which later checkpoints refer until it is changed.
    """


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor, Generic[T]):
    """Descriptor of a list per key; ``type`` is the type of an element."""

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            type: type[T],
            *,
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            type: Any = None,
            *,
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **more: Any) -> None: ...


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor, Generic[K, T]):
    """Descriptor of a mapping per key; ``key_type`` is the type of its keys, ``type`` that of its values."""

    key_type: Any = field(default=None, kw_only=True)
    # PyFlink's form, which takes the type of the keys first, is answered rather than refused by Python.
    _third: InitVar[Any] = None

    def __post_init__(self, _third: Any) -> None:
        super().__post_init__()
        if _third is not None:
            value, key = (each.__name__ if isinstance(each, type) else repr(each) for each in (_third, self.type))
            raise TypeError(
                f"MapStateDescriptor({self.name!r}) takes the type of the values, and that of the keys by name: "
                f"MapStateDescriptor({self.name!r}, {value:.60}, key_type={key:.60})"
            )

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            type: type[T],
            *,
            key_type: type[K],
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            type: Any = None,
            *,
            key_type: Any = None,
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **more: Any) -> None: ...


_Value = typing.TypeVar("_Value")
_In = typing.TypeVar("_In", contravariant=True)
_Result = typing.TypeVar("_Result", covariant=True)


class SupportsReduce(Protocol[_Value]):
    """Object with the method of a :class:`~sluiceway.functions.ReduceFunction`, which belongs to a room above."""

    def reduce(self, value1: _Value, value2: _Value) -> _Value:
        """Return two values reduced to one."""
        ...


class SupportsAggregate(Protocol[_In, _Result]):
    """Object with the methods of an :class:`~sluiceway.functions.AggregateFunction`, of a room above."""

    def create_accumulator(self) -> Any:
        """Return the accumulator of a key without values."""
        ...

    def add(self, value: _In, accumulator: Any) -> Any:
        """Return the accumulator with ``value`` in it."""
        ...

    def get_result(self, accumulator: Any) -> _Result:
        """Return the result."""
        ...

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        """Return one accumulator of two."""
        ...


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """Descriptor of one value per key, into which added values are reduced: ``reduce(old, new) -> value``."""

    reduce: Callable[[Any, Any], Any] | SupportsReduce[Any] = field(default=None)  # type: ignore[assignment]

    if TYPE_CHECKING:
        # Without overloads, of which one would take a lambda for a function of anything.
        def __init__(
            self,
            name: str,
            type: type[T] | UnionType | None = None,  # noqa: A002 (the name of the field)
            reduce: Callable[[T, T], T] | SupportsReduce[T] = ...,
            *,
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.reduce, "reduce", self.reduce)) or isinstance(self.reduce, type):
            raise TypeError(f"ReducingStateDescriptor({self.name!r}) needs reduce=, a function of two values")


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor, Generic[T, OUT]):
    """Descriptor of one accumulator per key; ``type`` is the type of the accumulator."""

    aggregate: SupportsAggregate[Any, Any] = field(default=None)  # type: ignore[arg-type]

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            type: Any = None,  # noqa: A002
            aggregate: SupportsAggregate[T, OUT] = ...,
            *,
            ttl: StateTtlConfig | None = None,
            migrate: Callable[[Any], Any] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.aggregate, "create_accumulator") or isinstance(self.aggregate, type):
            raise TypeError(f"AggregatingStateDescriptor({self.name!r}) needs aggregate=, an AggregateFunction")
