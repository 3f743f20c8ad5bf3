"""Several sources as one that reads them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sluiceway.connector import (
    Alternatives,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Reader,
    ReaderContext,
    Source,
)
from sluiceway.connector.lib.hybrid.enumerator import HybridEnumerator
from sluiceway.connector.lib.hybrid.reader import HybridReader
from sluiceway.connector.lib.hybrid.sequence import Given, SourceSequence, SourceSwitch
from sluiceway.connector.products import check_properties
from sluiceway.errors import ConfigurationError
from sluiceway.util.name_hints import HintingType
from sluiceway.util.overriding import override

__all__ = ["HybridSource", "SourceSwitch"]

T = TypeVar("T")


class HybridSource(Source[T], metaclass=HintingType):
    """Several sources, read one after the other: files of the past, say, and then a topic.

    Each source but the last one has to end. The next one begins when all readers have read the one before to its
    end; what is read is part of checkpoints as that of any source, and a job that is restored, at any parallelism,
    goes on in the source that was being read. Event time does not end with a source: watermarks rise over all of
    them, each split with a watermark of its own, and the maximum comes at the end of the last one. A reader that
    waits for the others holds the watermark back, unless the strategy has ``with_idleness``.

    Instead of a source, each one but the first can be a function that is given a :class:`SourceSwitch` when the
    one before has ended, and returns the source. It is called for the enumerator and for each reader, again after
    a restore with the times of the checkpoint, and must then return the same source; it must not wait.

    The sources keep their place in later versions of a program: a checkpoint has the number of the one being read.
    More can be added behind the last one as long as that has not ended.

    Args:
        sources: the sources in their order, or functions that make them.
        boundedness: where the last one is made by a function: that of the source that it makes; None: unbounded.

    Raises:
        ConfigurationError: no source; one that does not end before another one; the first one is a function.
        TypeError: neither a source nor a function.
    """

    def __init__(self, *sources: Given[T], boundedness: Boundedness | None = None) -> None:
        if not sources:
            raise ConfigurationError("HybridSource takes sources: HybridSource(past, present)")
        for number, given in enumerate(sources, 1):
            self._check(given, f"{number} of {len(sources)}", is_first=number == 1, is_last=number == len(sources))
        last = sources[-1]
        if boundedness is None:
            boundedness = last.boundedness if isinstance(last, Source) else Boundedness.UNBOUNDED
        elif not isinstance(boundedness, Boundedness):
            raise TypeError(
                f"boundedness={boundedness!r:.60} must be a Boundedness (sluiceway.connector), or None"
            )
        elif isinstance(last, Source) and last.boundedness is not boundedness:
            raise ConfigurationError(
                f"HybridSource: boundedness={boundedness}, and the last source, {last.name}, is "
                f"{last.boundedness.value}: leave it out"
            )
        self._sequence = SourceSequence(sources, boundedness)

    @staticmethod
    def _check(given: Any, which: str, *, is_first: bool, is_last: bool) -> None:
        if isinstance(given, Source):
            check_properties(given)
            if not is_last and given.boundedness is not Boundedness.BOUNDED:
                raise ConfigurationError(
                    f"HybridSource: source {which}, {given!r:.200}, does not end, so that the next one would "
                    "never be read: put it last, or have it end, as with stop= of a KafkaSource"
                )
        elif isinstance(given, type) or not callable(given):
            raise TypeError(
                f"HybridSource takes sources, and functions that make one of a SourceSwitch; {which} is "
                f"{given!r:.100} ({type(given).__name__})"
            )
        elif is_first:
            raise ConfigurationError(
                "HybridSource: the first source is a function, and no source ends before it: call it, or give a "
                "source"
            )

    def __repr__(self) -> str:
        return f"HybridSource({', '.join(map(repr, self._sequence.given))})"

    def __len__(self) -> int:
        return len(self._sequence.given)

    @property
    @override
    def boundedness(self) -> Boundedness:
        return self._sequence.boundedness

    @property
    def output_type(self) -> Any:
        """Type that the records of all sources have; None if they differ, or one is not known yet."""
        types = [given.output_type if isinstance(given, Source) else None for given in self._sequence.given]
        return types[0] if all(each == types[0] for each in types) else None

    @property
    def max_readers(self) -> int | None:
        """Smallest of those of the sources."""
        return min(
            (each.max_readers for each in self._sequence.known if each.max_readers is not None), default=None
        )

    @property
    @override
    def seekable(self) -> bool:
        return all(each.seekable for each in self._sequence.known)

    @property
    def gives_timestamps(self) -> bool:
        """True if one of the sources may."""
        return self._sequence.has_functions or any(each.gives_timestamps for each in self._sequence.known)

    @property
    def rejects_records(self) -> bool:
        """True if one of the sources may."""
        return self._sequence.has_functions or any(each.rejects_records for each in self._sequence.known)

    @property
    @override
    def commits_positions(self) -> bool:
        return any(each.commits_positions for each in self._sequence.known)

    @property
    @override
    def needs_program(self) -> bool:
        return any(each.needs_program for each in self._sequence.known)

    @property
    @override
    def uses_events(self) -> bool:
        return True

    def in_columns(self) -> tuple[Source[Any], Any] | None:
        """Return a source of the sources in columns, and the schema that all of them have.

        A source that a function makes is looked at when it is made.

        Raises:
            ConfigurationError: the schemas differ.
            ConnectorError: a schema cannot be found out.
        """
        schema: Any = None
        sources: list[Given[Any]] = []
        for number, given in enumerate(self._sequence.given, 1):
            if not isinstance(given, Source):
                sources.append(_InColumns(given, schema))
                continue
            found = given.in_columns()
            if found is None:
                return None
            schema = found[1] if schema is None else schema
            _check_schema(schema, found[1], f"source {number} of {len(self._sequence.given)}, {given.name},")
            sources.append(found[0])
        return self._with(sources), schema

    def pushed(
        self, columns: frozenset[str] | None, conditions: Alternatives | None
    ) -> tuple[Source[Any], Any] | None:
        """Return a source that reads less, if the sources can all leave out the same columns."""
        if self._sequence.has_functions:
            return None
        found = [given.pushed(columns, conditions) for given in self._sequence.known]
        schemas = [None if each is None else each[1] for each in found]
        if schemas[0] is None or any(each is None or each != schemas[0] for each in schemas):
            return None
        return self._with([each[0] for each in found if each is not None]), schemas[0]

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Make the enumerator, and that of the source that is read first, or was being read.

        Raises:
            ConfigurationError: the restored state is that of more sources.
        """
        return HybridEnumerator(context, self._sequence, restored)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[T]:
        return HybridReader(context, self._sequence)

    def _with(self, sources: Sequence[Given[Any]]) -> HybridSource[Any]:
        return HybridSource(*sources, boundedness=self._sequence.boundedness)


class _InColumns:
    """Function that makes the source in columns of the source that another one makes."""

    def __init__(self, function: Callable[[SourceSwitch], Source[Any]], schema: Any) -> None:
        self._function = function
        self._schema = schema

    def __call__(self, switch: SourceSwitch) -> Source[Any]:
        made = self._function(switch)
        found = made.in_columns()
        if found is None:
            raise ConfigurationError(
                f"HybridSource in table(): {made!r:.200}, made at the switch, reads records, not columns"
            )
        _check_schema(self._schema, found[1], f"{made.name}, made at the switch,")
        return found[0]


def _check_schema(first: Any, other: Any, what: str) -> None:
    """Raise ConfigurationError unless two schemas of Arrow have the same columns in the same order."""
    if first.equals(other):
        return
    differing = next((pair for pair in zip(first, other, strict=False) if not pair[0].equals(pair[1])), None)
    if differing is None:
        differing = (f"{len(first)} columns", f"{len(other)}")
    raise ConfigurationError(
        f"HybridSource in table(): all sources must have the same columns in the same order; the first one has "
        f"{_column(differing[0])}, and {what} has {_column(differing[1])}"
    )


def _column(found: Any) -> str:
    if isinstance(found, str):
        return found
    return f"column {found.name!r} of {found.type}{'' if found.nullable else ' that is never null'}"
