"""Built-in aggregations as source text, for generated loops that inline the function instead of calling it.

A call costs more than the sum or comparison inside it. So a built-in function provides, besides its
methods, the statements of its ``add`` or ``reduce``. Both must make the same accumulators, as state moves between
loops that use the one and operators that use the other.
"""

from __future__ import annotations

import linecache
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from textwrap import indent
from typing import Any, Final, NamedTuple

from sluiceway.functions import ReduceFunction
from sluiceway.isolation import ATOMS
from sluiceway.keygroups import stable_hash
from sluiceway.record_errors import MISSING, record_loop

__all__ = [
    "NAMES",
    "Fold",
    "Folding",
    "Text",
    "aggregating_loop",
    "begin_of",
    "calling",
    "first_of",
    "fold_of",
    "made_of",
]

NAMES: Final[dict[str, Any]] = {
    "absent": (LookupError, TypeError, AttributeError),
    "missing": MISSING,
    "stable": frozenset({str, int, bytes, bool, type(None)}),  # such keys need no check of their hash
    "stable_hash": stable_hash,
}
"""Names that texts may use besides the arguments of a loop."""


class Text(NamedTuple):
    """Python source for one key and a record ``value``.

    Attributes:
        first: an expression for the accumulator of the key's first record.
        next: statements that add the record to the accumulator ``held``. They assign to ``held``, if it changes.
    """

    first: str
    next: str


class Fold(NamedTuple):
    """Source of a function, and the objects that it refers to.

    Attributes:
        text: of the function.
        add: called ``add`` in the text.
        first: called ``first`` in the text.
        result: makes a result of an accumulator; None: the accumulator is the result.
        running: for accumulators that are tuples of one value: statements that add the record to the value
            ``made``, and assign the tuple to ``entries[key]`` after everything that may raise, as a skipped record
            must not be added. ``""``: there are none.
    """

    text: Text
    add: Any
    first: Any = None
    result: Callable[[Any], Any] | None = None
    running: str = ""


class Folding(ABC):
    """Built-in function that can be inlined in a loop.

    Attributes:
        begin: of one that reduces: returns the first record of a key, or raises if the function does not take it;
            None: it takes any.
    """

    begin: Callable[[Any], Any] | None = None

    @abstractmethod
    def fold(self) -> Fold:
        """Return the source text of the function."""


_REDUCE: Final = Text("value", "held = add(held, value)\n")
_AGGREGATE: Final = Text("add(value, first())", "held = add(value, held)\n")

first_of: Final = itemgetter(0)
"""Return the only value of an accumulator that is a tuple of one."""


def fold_of(function: Any, *, aggregates: bool) -> Fold:
    """Return the fold of a function: its own, or one that calls it.

    Args:
        function: an aggregate function, or one that reduces.
        aggregates: whether it is the former.
    """
    if isinstance(function, Folding):
        return function.fold()
    if aggregates:
        return Fold(_AGGREGATE, function.add, function.create_accumulator, function.get_result)
    return calling(function.reduce if isinstance(function, ReduceFunction) else function)


def begin_of(function: Any) -> Callable[[Any], Any]:
    """Return the function that the first record of a key goes through; see :class:`Folding`."""
    begin: Callable[[Any], Any] | None = function.begin if isinstance(function, Folding) else None
    return _unchanged if begin is None else begin


def _unchanged(value: Any) -> Any:
    return value


def calling(reduce: Callable[[Any, Any], Any]) -> Fold:
    """Return the fold that calls ``reduce(reduced so far, value)``."""
    return Fold(_REDUCE, reduce)


def made_of(filename: str, source: str, **names: Any) -> Callable[..., Any]:
    """Compile ``source`` and return its function ``loop``, registered as one whose records are found on errors.

    Args:
        filename: shown in tracebacks.
        source: the text.
        names: names that the text uses besides :data:`NAMES`.
    """
    # Registered for debuggers, which then show the text of the loop. The mtime of None keeps
    # linecache.checkcache() from dropping an entry without a file.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {**NAMES, **names}
    exec(compile(source, filename, "exec"), scope)
    loop: Callable[..., Any] = record_loop(scope["loop"])
    return loop


# Each record so far has a result or was skipped, so that the number of both is the index of the failing one.
_AGGREGATING: Final = """\
def loop(self, batch, keys, entries, out, skipped, key_of, first, add, missing=missing, atoms=atoms):
    get, append, isolate = entries.get, out.append, self.isolate
    for {names} in {lists}:
        try:
{key}            try:
                held = get(key, missing)
            except TypeError:
                stable_hash(key)  # says which key is unhashable
                raise
            if held is missing:
                if type(key) not in stable:
                    stable_hash(key)
                entries[key] = held = {first}
                made = held[0]
            else:
                made = held[0]
{next}            if type(made) not in atoms:
                made = isolate(made)
        except Exception as error:
            index = len(out) + len(skipped)
            if not self._skips(error, batch, index):
                raise
            skipped.append(index)
            continue
        append((key, made))
"""


@cache
def aggregating_loop(begin: str, running: str, *, with_keys: bool) -> Callable[..., None]:
    """Return the loop of a running aggregation that emits pairs of key and result.

    Args:
        begin: the expression for the first record of a key; see :class:`Text`.
        running: see :class:`Fold`.
        with_keys: whether the batch brings its keys; else they are computed.

    Returns:
        ``loop(operator, batch, keys, entries, out, skipped, key_of, first, add)``.
    """
    source = _AGGREGATING.format(
        names="key, value" if with_keys else "value",
        lists="zip(keys, batch.values, strict=True)" if with_keys else "batch.values",
        key="" if with_keys else " " * 12 + "key = key_of(value)\n",
        first=begin,
        next=indent(running, " " * 16),
    )
    forms = ["keys"] * with_keys + [begin, running.strip().replace("\n", "; ")]
    return made_of(f"<sluiceway: aggregation, {', '.join(forms)}>", source, atoms=ATOMS)
