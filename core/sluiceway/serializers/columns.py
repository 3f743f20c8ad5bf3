"""Records as columns: a shape, which says what they are made of, and what is left to pickle of them.

A shape is a tuple that can be hashed and pickled, or None for values that are pickled as they are:

=========================================  ==========================================================
shape                                      left to pickle
=========================================  ==========================================================
``("record", kind, class, names, shapes)`` a list with what is left of each field's column
``("tuple", shapes)``                      likewise
``("list", shape)``                        the lengths, and what is left of all that is in the lists
``("mixed", shapes)``                      which class each is of (bytes), and what is left of each class
``("msgpack", class)``                     bytes: msgpack's rendering of the column
``("arrays",)``                            one numpy array with all of them along its first axis
``("scalars",)``                           one numpy array of them
``("arrow", name)``                        bytes for each: Arrow's stream format
=========================================  ==========================================================
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice
from operator import attrgetter, countOf
from typing import Any, Final
from uuid import UUID

import msgspec

from sluiceway.serializers import layouts
from sluiceway.serializers.exactness import every_exact

__all__ = ["BY_MSGPACK", "SCALARS", "Knotted", "Shape", "classes_in", "is_plain", "rebuild", "shrink"]

Shape = tuple[Any, ...] | None

SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None)})
BY_MSGPACK: Final = frozenset({dt.date, dt.datetime, dt.time, dt.timedelta, Decimal, UUID})
_SHORT: Final = 128  # characters or bytes
_DEPTH: Final = 6
_SMALL: Final = 1 << 16
_FEW: Final = 8  # classes
_ENOUGH: Final = 128  # values of them


class Knotted(Exception):  # noqa: N818
    """A record refers to a record of its own class: only pickle can tell whether to itself."""


def is_plain(record: Any) -> bool:
    """Return whether a record is a scalar or a tuple of scalars, none of them long."""
    row = record if type(record) is tuple else (record,)
    if not SCALARS.issuperset(map(type, row)):
        return False
    return not any(len(part) > _SHORT for part in row if type(part) is str or type(part) is bytes)


def shrink(values: Sequence[Any], path: tuple[Any, ...] = ()) -> tuple[Shape, Any, bool]:
    """Return the shape of values, what is left to pickle, and whether that is all plain. Raises Knotted."""
    if not values:
        return None, values, True
    first = values[0]
    cls = type(first)
    # Where the first is None, the others may be anything.
    scalars = first if cls is tuple else (first,)
    if SCALARS.issuperset(map(type, scalars)) and None not in scalars:
        return None, values, is_plain(first)
    if len(path) > _DEPTH:
        raise Knotted
    alike = countOf(map(type, values), cls) == len(values)
    if alike and first is None:
        return None, values, True
    found = _of_class(cls, values, path) if alike else _mixed(values, path)
    return (None, values, False) if found is None else found


def _of_class(cls: Any, values: Sequence[Any], path: tuple[Any, ...]) -> tuple[Shape, Any, bool] | None:
    if cls is tuple:
        return _tuples(values, path)
    if cls is list:
        return _lists(values, path)
    if cls in BY_MSGPACK:
        check = _check_of(cls)
        return (("msgpack", cls), _pack(values), True) if check is not None and check(values) else None
    library = cls.__module__.partition(".")[0]
    if library == "numpy":
        return _numpy(cls, values)
    if library == "pyarrow":
        return _arrow(cls, values)
    kind = layouts.kind_of(cls)
    if kind is None:
        return None
    # Even one level deep: a cycle could not be told from a tree without a memo.
    if cls in path:
        raise Knotted
    names = layouts.names_of(kind, values[0])
    columns = layouts.take_apart(kind, names, values) if names else None
    if columns is None:
        return None
    shapes, left, plain = _shrink_all(columns, (*path, cls))
    return ("record", kind, cls, names, shapes), left, plain


def _mixed(values: Sequence[Any], path: tuple[Any, ...]) -> tuple[Shape, Any, bool] | None:
    """Return values of a few classes, class by class, with the number of its class for each."""
    if len(values) < _ENOUGH:
        return None
    groups: dict[type, list[Any]] = {cls: [] for cls in dict.fromkeys(map(type, values))}
    if len(groups) > _FEW:
        return None
    for value in values:
        groups[type(value)].append(value)
    shapes, left, plain = _shrink_all(list(groups.values()), path)
    if not any(shapes):
        return None
    numbers = {cls: number for number, cls in enumerate(groups)}
    return ("mixed", shapes), [bytes(map(numbers.__getitem__, map(type, values))), left], plain


def _shrink_all(
    columns: Sequence[Sequence[Any]], path: tuple[Any, ...]
) -> tuple[tuple[Shape, ...], list[Any], bool]:
    shrunk = [shrink(column, path) for column in columns]
    return tuple(s for s, _, _ in shrunk), [left for _, left, _ in shrunk], all(p for _, _, p in shrunk)


def _tuples(values: Sequence[Any], path: tuple[Any, ...]) -> tuple[Shape, Any, bool] | None:
    try:
        columns = list(zip(*values, strict=True))
    except ValueError:  # of unequal lengths
        return None
    if not columns:
        return None
    shapes, left, plain = _shrink_all(columns, (*path, tuple))
    return (("tuple", shapes), left, plain) if any(shapes) else None


def _lists(values: Sequence[Any], path: tuple[Any, ...]) -> tuple[Shape, Any, bool] | None:
    shape, left, plain = shrink(list(chain.from_iterable(values)), (*path, list))
    return None if shape is None else (("list", shape), [list(map(len, values)), left], plain)


@lru_cache(maxsize=256)
def _check_of(cls: type) -> Callable[[Sequence[Any]], bool] | None:
    return every_exact(cls)


@lru_cache(maxsize=256)
def _decoder_of(cls: Any) -> Callable[[bytes], list[Any]]:
    return msgspec.msgpack.Decoder(list[cls]).decode


_pack: Final = msgspec.msgpack.Encoder().encode


def rebuild(shape: Shape, left: Any) -> Sequence[Any]:
    """Return the values that :func:`shrink` was given."""
    if shape is None:
        return left  # type: ignore[no-any-return]
    what = shape[0]
    if what == "record":
        _, kind, cls, names, shapes = shape
        return layouts.put_together(kind, cls, names, list(map(rebuild, shapes, left)))
    if what == "tuple":
        return list(zip(*map(rebuild, shape[1], left), strict=True))
    if what == "list":
        lengths, inside = left
        rest = iter(rebuild(shape[1], inside))
        return [list(islice(rest, length)) for length in lengths]
    if what == "mixed":
        of_class, inside = left
        groups = [iter(rebuild(*each)) for each in zip(shape[1], inside, strict=True)]
        return [next(groups[number]) for number in of_class]
    if what == "msgpack":
        return _decoder_of(shape[1])(left)
    if what == "arrays":
        # A view of a row would keep the whole batch in memory.
        return [row.copy() for row in left]
    if what == "scalars":
        return list(left)
    return _from_arrow(shape[1], left)


def classes_in(shape: Shape) -> list[type]:
    """Return the classes of the records that were split into columns."""
    if shape is None or shape[0] not in ("record", "tuple", "list", "mixed"):
        return []
    own = [shape[2]] if shape[0] == "record" else []
    inner = (shape[1],) if shape[0] == "list" else shape[-1]
    return [*own, *chain.from_iterable(map(classes_in, inner))]


# ---- numpy --------------------------------------------------------------------------------------------------


def _numpy(cls: Any, values: Sequence[Any]) -> tuple[Shape, Any, bool] | None:
    import numpy as np

    dtype = values[0].dtype
    if dtype.kind in "OV" or dtype.metadata is not None:
        return None
    if cls is np.ndarray:
        alike = len(set(map(attrgetter("dtype.str", "dtype.char", "shape"), values))) == 1
        # Arrays with other flags would come back with these.
        usual = attrgetter("flags.c_contiguous", "flags.writeable")
        small = values[0].ndim > 0 and values[0].nbytes <= _SMALL  # large ones had better not be copied once more
        if alike and small and {(True, True)}.issuperset(map(usual, values)):
            # Without the type, numpy changes the bytes of each number to the order of this machine.
            return ("arrays",), np.stack(values, dtype=dtype), False
    elif issubclass(cls, np.generic) and len(set(map(attrgetter("dtype.str"), values))) == 1:
        return ("scalars",), np.array(values, dtype), False
    return None


# ---- Arrow --------------------------------------------------------------------------------------------------


def _arrow(cls: Any, values: Sequence[Any]) -> tuple[Shape, Any, bool] | None:
    import pyarrow as pa

    if cls is not pa.RecordBatch and cls is not pa.Table:
        return None
    left = []
    for value in values:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        left.append(sink.getvalue().to_pybytes())
    return ("arrow", cls.__name__), left, False


def _from_arrow(name: str, left: Sequence[bytes]) -> list[Any]:
    import pyarrow as pa

    readers = map(pa.ipc.open_stream, left)
    return [reader.read_all() if name == "Table" else reader.read_next_batch() for reader in readers]
