"""Window joins and co-groups: two streams, tagged by side and merged into one that is divided into windows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, TypeVar

from sluiceway.api.arguments import check_function
from sluiceway.api.joins import WantsApply, check_same_keys
from sluiceway.api.keyed import KeyedStream
from sluiceway.api.stream import DataStream
from sluiceway.api.unknown_names import answer
from sluiceway.api.windowed import WindowedStream
from sluiceway.functions import (
    CheckpointedFunction,
    CheckpointListener,
    CoGroupFunction,
    FlatJoinFunction,
    Function,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    JoinFunction,
    KeySelector,
    OutputTag,
    RuntimeContext,
    TaggedUnion,
    WindowFunction,
)
from sluiceway.functions.life import note_closed, note_opened, unopened
from sluiceway.graph import InputRef
from sluiceway.graph.identity import function_name
from sluiceway.isolation import all_unchangeable, copied
from sluiceway.operators.escape_analysis import changes_nothing
from sluiceway.operators.joins.base import check_joined, pair_loop
from sluiceway.steps import TagStep, WindowContents
from sluiceway.types import element_type, is_known, parameter_type, return_type
from sluiceway.util.overriding import override
from sluiceway.windows.base import Evictor, Trigger, Window, WindowAssigner
from sluiceway.windows.durations import Duration

if TYPE_CHECKING:
    from typing import Self

__all__ = ["CoGroupedStreams", "JoinedStreams", "WindowedCoGroup", "WindowedJoin"]

L = TypeVar("L")
R = TypeVar("R")
K = TypeVar("K")
W = TypeVar("W")
OUT = TypeVar("OUT")


class _InOrder:
    """A method that has its turn later is answered with what comes first."""

    _first: ClassVar[str]
    _then: ClassVar[tuple[str, ...]]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in self._then:
                raise AttributeError(f"{type(self).__name__} has no {name}() yet: call {self._first} first")
            answer(self, name)


_SETTINGS = ("trigger", "evictor", "allowed_lateness", "side_output_late_data", "apply")
_WINDOW = 'window(assigner), as in window(TumblingEventTimeWindows("10s")),'


@dataclass(frozen=True)
class _Streams(_InOrder, Generic[L, R]):
    _left: DataStream[L]
    _right: DataStream[R]

    _first = "where(key) and equal_to(key)"
    _then = ("equal_to", "window", *_SETTINGS)


class JoinedStreams(_Streams[L, R]):
    """Two streams to be joined in windows, returned by :meth:`DataStream.join`.

    Say by which keys and in which windows, and what to make of a pair::

        (
            orders.join(payments)
            .where(lambda order: order.number)
            .equal_to(lambda payment: payment.order)
            .window(TumblingEventTimeWindows("1h"))
            .apply(lambda order, payment: (order, payment))
        )

    It is an inner join: what meets nothing in its window gives nothing. For an outer join use
    :meth:`DataStream.co_group`.
    """

    def where(self, key: Callable[[L], K] | KeySelector[L, K]) -> Where[L, R, K, WindowedJoin[L, R]]:
        """Say what the key of a record of the first stream is; see :meth:`DataStream.key_by`."""
        check_function("where", key, (KeySelector,), 1)
        return Where(self._left, self._right, WindowedJoin, key)


class CoGroupedStreams(_Streams[L, R]):
    """Two streams to be grouped together in windows, returned by :meth:`DataStream.co_group`.

    The function is given all that both have of one key in one window, also where one of them has nothing. So
    it can do any outer join::

        def left_outer(orders, payments):
            for order in orders:
                for payment in payments or [None]:
                    yield order, payment
    """

    def where(self, key: Callable[[L], K] | KeySelector[L, K]) -> Where[L, R, K, WindowedCoGroup[L, R]]:
        """Say what the key of a record of the first stream is; see :meth:`DataStream.key_by`."""
        check_function("where", key, (KeySelector,), 1)
        return Where(self._left, self._right, WindowedCoGroup, key)


@dataclass(frozen=True)
class Where(_InOrder, Generic[L, R, K, W]):
    """A join or co-group that knows the keys of its first stream."""

    _left: DataStream[L]
    _right: DataStream[R]
    _windowed: type[Any]
    _left_key: Callable[[L], K] | KeySelector[L, K]

    _first = "equal_to(key)"
    _then = ("window", *_SETTINGS)

    def equal_to(self, key: Callable[[R], K] | KeySelector[R, K]) -> EqualTo[L, R, K, W]:
        """Say what the key of a record of the second stream is; it must be of the same type as the first's.

        Raises:
            GraphError: hints say that no two keys can be equal.
        """
        check_function("equal_to", key, (KeySelector,), 1)
        check_same_keys("equal_to", self._left_key, key)
        return EqualTo(self._left, self._right, self._windowed, self._left_key, key)


@dataclass(frozen=True)
class EqualTo(_InOrder, Generic[L, R, K, W]):
    """A join or co-group that knows the keys of both streams."""

    _left: DataStream[L]
    _right: DataStream[R]
    _windowed: type[Any]
    _left_key: Callable[[L], K] | KeySelector[L, K]
    _right_key: Callable[[R], K] | KeySelector[R, K]

    _first = _WINDOW
    _then = _SETTINGS

    def window(self, assigner: WindowAssigner) -> W:
        """Say which windows: any of :mod:`sluiceway.windows`, or an assigner of your own. Raises TypeError."""
        key = _EitherKey(self._left_key, self._right_key)
        made: W = self._windowed(self._left, self._right, key, WindowedStream(self._left, key, assigner))
        return made


# ---- with windows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Windowed(WantsApply, Generic[L, R]):
    _left: DataStream[L]
    _right: DataStream[R]
    _key: _EitherKey
    _windows: WindowedStream[Any, Any]

    _word: ClassVar[str]

    def trigger(self, trigger: Trigger) -> Self:
        """As :meth:`WindowedStream.trigger`; the trigger is given :class:`TaggedUnion` records of both streams."""
        return replace(self, _windows=self._windows.trigger(trigger))

    def evictor(self, evictor: Evictor) -> Self:
        """As :meth:`WindowedStream.evictor`; the evictor is given :class:`TaggedUnion` records of both streams."""
        return replace(self, _windows=self._windows.evictor(evictor))

    def allowed_lateness(self, lateness: Duration) -> Self:
        """As :meth:`WindowedStream.allowed_lateness`: the whole window is evaluated anew for a late record."""
        return replace(self, _windows=self._windows.allowed_lateness(lateness))

    def side_output_late_data(self, tag: OutputTag[TaggedUnion[Any]]) -> Self:
        """As :meth:`WindowedStream.side_output_late_data`; what comes out are :class:`TaggedUnion` records."""
        return replace(self, _windows=self._windows.side_output_late_data(tag))

    def _apply(self, fn: Any, window_fn: WindowFunction[Any, Any, Any], wanted: list[Any], output: Any) -> Any:
        pipeline = self._left._pipeline
        sides: tuple[tuple[Literal["left", "right"], DataStream[Any], Any, Any], ...] = (
            ("left", self._left, self._key.left, wanted[0]),
            ("right", self._right, self._key.right, wanted[1]),
        )
        inputs: list[InputRef] = []
        for side, stream, key, want in sides:
            of_key = parameter_type(key, 0, "get_key" if isinstance(key, KeySelector) else None)
            step = TagStep(partial(TaggedUnion, side), wanted=(of_key, want))
            came = stream._inputs
            if isinstance(stream, KeyedStream):  # what it is keyed by does not matter any more
                came = tuple(replace(ref, partitioner=None) for ref in came)
            inputs.append(InputRef(pipeline._add(step, came, f"{self._word}.{side}")))
        both: DataStream[TaggedUnion[Any]] = DataStream(pipeline, tuple(inputs), f"{self._word}()")
        # Until here they are windows of the left stream, by which the settings are checked.
        windows = copy.copy(self._windows)
        windows._stream = both.key_by(self._key)
        name = function_name(fn)
        shown = self._word if name.endswith("<lambda>") else f"{self._word}({name})"
        results = windows._then(WindowContents.ELEMENTS, shown, window_fn=window_fn)
        if is_known(output):
            results._settable("apply").output_type = output
        return results


class WindowedJoin(_Windowed[L, R]):
    """A join whose keys and windows are known. Settings give new objects; then comes :meth:`apply`."""

    _word = "join"

    def apply(
        self, fn: JoinFunction[L, R, OUT] | FlatJoinFunction[L, R, OUT] | Callable[[L, R], OUT]
    ) -> DataStream[OUT]:
        """One result for each pair of records with equal keys in one window: ``fn(left, right)``.

        Any number with a :class:`FlatJoinFunction`. Results come when the window is evaluated, with its last ms
        as their timestamp.

        Raises:
            TypeError: ``fn`` cannot be called so.
            GraphError: the windows need a trigger.
        """
        check_function("apply", fn, (JoinFunction, FlatJoinFunction), 2)
        method = "join" if isinstance(fn, Function) else None
        output = return_type(fn, method)
        if isinstance(fn, FlatJoinFunction):
            output = element_type(output)
        wanted = [parameter_type(fn, side, method) for side in (0, 1)]
        joined: DataStream[OUT] = self._apply(
            fn, _over(fn, _Pairs, _CheckpointedPairs, _ListeningPairs), wanted, output
        )
        return joined


class WindowedCoGroup(_Windowed[L, R]):
    """A co-group whose keys and windows are known. Settings give new objects; then comes :meth:`apply`."""

    _word = "co_group"

    def apply(
        self,
        fn: CoGroupFunction[L, R, OUT] | Callable[[Sequence[L], Sequence[R]], Iterable[OUT] | None],
    ) -> DataStream[OUT]:
        """Any results for all records of one key in one window: ``fn(lefts, rights)`` yields them.

        It may return an iterable of them or None as well. One of the two lists may be empty. Results have the
        last ms of the window as their timestamp.

        Raises:
            TypeError: ``fn`` cannot be called so.
            GraphError: the windows need a trigger.
        """
        check_function("apply", fn, (CoGroupFunction,), 2)
        method = "co_group" if isinstance(fn, Function) else None
        wanted = [element_type(parameter_type(fn, side, method)) for side in (0, 1)]
        output = element_type(return_type(fn, method))
        grouped: DataStream[OUT] = self._apply(
            fn, _over(fn, _Groups, _CheckpointedGroups, _ListeningGroups), wanted, output
        )
        return grouped


# ---- at work ----------------------------------------------------------------------------------------------------


class _EitherKey(KeySelector[TaggedUnion[Any], Any]):
    """The key of a record of either stream."""

    def __init__(self, left: Any, right: Any) -> None:
        self.left = left
        self.right = right
        names = {function_name(left): None, function_name(right): None}
        self.__qualname__ = (
            " or ".join(name.strip("<>") for name in names) if len(names) > 1 else next(iter(names))
        )
        self._of_left = left.get_key if isinstance(left, KeySelector) else left
        self._of_right = right.get_key if isinstance(right, KeySelector) else right

    def get_key(self, value: TaggedUnion[Any]) -> Any:
        """By the key selector of the stream that it is from."""
        side, record = value
        return self._of_left(record) if side == "left" else self._of_right(record)


class _OfBoth(WindowFunction[Any, TaggedUnion[Any], Any]):
    """Window function that separates the records of the two streams."""

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        self.__qualname__ = function_name(fn)
        self.step_name: str | None = None

    @property
    def __sluiceway_called__(self) -> object:
        """The object of the user, which no two steps may share."""
        return self._fn

    def __reduce__(self) -> tuple[Any, ...]:
        # Copied and pickled without what the function of the join has bound when it was opened.
        return type(self), (unopened(self._fn),)

    def open(self, context: RuntimeContext) -> None:
        self.step_name = context.operator_name
        if isinstance(self._fn, Function):
            note_opened(self._fn)
            self._fn.open(context)

    def close(self) -> None:
        if isinstance(self._fn, Function):
            try:
                self._fn.close()
            finally:
                note_closed(self._fn)

    def apply(self, key: Any, window: Window, elements: Sequence[TaggedUnion[Any]]) -> Iterable[Any] | None:
        lefts = [record for side, record in elements if side == "left"]
        rights = [record for side, record in elements if side == "right"]
        return self.results(key, window.max_timestamp, lefts, rights)

    def results(self, key: Any, timestamp: int, lefts: list[Any], rights: list[Any]) -> Iterable[Any] | None:
        raise NotImplementedError


class _Groups(_OfBoth):
    def results(self, key: Any, timestamp: int, lefts: list[Any], rights: list[Any]) -> Iterable[Any] | None:
        if not lefts and not rights:  # an evictor took all
            return None
        call = self._fn.co_group if isinstance(self._fn, CoGroupFunction) else self._fn
        given: Iterable[Any] | None = call(lefts, rights)
        return given


class _Pairs(_OfBoth):
    """Calls of a join's function for all pairs of a window.

    Each pair is given records that no call before it has changed, and each result is emitted as it is when its
    call returns.
    """

    def __init__(self, fn: Any) -> None:
        super().__init__(fn)
        self._many = isinstance(fn, FlatJoinFunction)
        self._call: Callable[[Any, Any], Any] = fn.join if isinstance(fn, JoinFunction | FlatJoinFunction) else fn
        self._may_change = not changes_nothing(self._call)

    @pair_loop
    def results(self, key: Any, timestamp: int, lefts: list[Any], rights: list[Any]) -> Iterator[Any]:
        call, many = self._call, self._many
        copies = self._may_change and not (all_unchangeable(lefts) and all_unchangeable(rights))
        last, last_right = len(lefts) - 1, len(rights) - 1
        for at, left_record in enumerate(lefts):
            for at_right, right_record in enumerate(rights):
                left, right = left_record, right_record
                if copies:
                    # The last pair of a record is given the record itself, which is the window's own copy.
                    left = left if at_right == last_right else copied(left)
                    right = right if at == last else copied(right)
                # No variable for one result: whoever counts its references would take it for shared.
                if not many:
                    yield call(left, right)
                    continue
                returned = call(left, right)
                if returned is not None:
                    check_joined(str(self.step_name), returned)
                    yield from returned


class _Listening(CheckpointListener):
    """Window function that notifies the function of the join of checkpoints."""

    _fn: Any

    @override
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if isinstance(self._fn, CheckpointListener):
            self._fn.notify_checkpoint_complete(checkpoint_id)

    @override
    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        if isinstance(self._fn, CheckpointListener):
            self._fn.notify_checkpoint_aborted(checkpoint_id)


class _Checkpointed(CheckpointedFunction, _Listening):
    """Window function whose operator state is that of the function of the join."""

    @override
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        note_opened(self._fn)
        self._fn.initialize_state(context)

    @override
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._fn.snapshot_state(context)


class _CheckpointedGroups(_Checkpointed, _Groups): ...


class _CheckpointedPairs(_Checkpointed, _Pairs): ...


class _ListeningGroups(_Listening, _Groups): ...


class _ListeningPairs(_Listening, _Pairs): ...


def _over(
    fn: Any, plain: type[_OfBoth], checkpointed: type[_OfBoth], listening: type[_OfBoth]
) -> WindowFunction[Any, Any, Any]:
    """Return the window function that calls ``fn``, of the class that has its hooks of checkpoints, too."""
    if isinstance(fn, CheckpointedFunction):
        return checkpointed(fn)
    return listening(fn) if isinstance(fn, CheckpointListener) else plain(fn)
