"""Values that are not of the type that a descriptor declares: refused where they are written, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.keyed_state import store as keyed_store
from sluiceway.state import KeyedStateBackend
from sluiceway.state.declared import check_of
from sluiceway.testing import OperatorHarness
from sluiceway.windows import TumblingEventTimeWindows

BACKENDS = ["memory", "rocksdb"]
TTL = sw.StateTtlConfig("1h")


class Joining(sw.AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value if accumulator is None else accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        return accumulator1 + accumulator2


@dataclass
class Visit:
    page: str
    seconds: float


Write = Callable[[KeyedStateStore, Any, Any], Any]


def value(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.value_state(sw.ValueStateDescriptor("s", Visit, ttl=ttl))
    state.update(given)
    return state.value()


def with_default(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.value_state(sw.ValueStateDescriptor("s", Visit, Visit("none", 0.0), ttl=ttl))
    state.update(given)
    return state.value()


def added(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.list_state(sw.ListStateDescriptor("s", Visit, ttl=ttl))
    state.add(given)
    return state.get()[0]


def all_added(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.list_state(sw.ListStateDescriptor("s", Visit, ttl=ttl))
    state.add_all(iter([given]))
    return state.get()[0]


def listed(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.list_state(sw.ListStateDescriptor("s", Visit, ttl=ttl))
    state.update(iter([given]))
    return state.get()[0]


def put(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.map_state(sw.MapStateDescriptor("s", Visit, key_type=str, ttl=ttl))
    state.put("k", given)
    return state["k"]


def all_put(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.map_state(sw.MapStateDescriptor("s", Visit, ttl=ttl))
    state.put_all({"k": given})
    return state["k"]


def put_by_default(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.map_state(sw.MapStateDescriptor("s", Visit, key_type=str, ttl=ttl))
    return state.setdefault("k", given)


def reduced(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.reducing_state(sw.ReducingStateDescriptor("s", Visit, lambda old, new: new, ttl=ttl))
    state.add(given)
    return state.get()


def aggregated(store: KeyedStateStore, given: Any, ttl: Any) -> Any:
    state = store.aggregating_state(sw.AggregatingStateDescriptor("s", Visit, Joining(), ttl=ttl))
    state.add(given)
    return state.get()


WRITES = [value, with_default, added, all_added, listed, put, all_put, put_by_default, reduced, aggregated]


@pytest.fixture
def timed(new_backend: Callable[[], KeyedStateBackend]) -> KeyedStateStore:
    store = KeyedStateStore(new_backend(), VirtualClock(0))
    store.current_key = "a"
    return store


@pytest.mark.parametrize("ttl", [None, TTL], ids=["for ever", "ttl"])
@pytest.mark.parametrize("write", WRITES)
def test_a_value_of_another_type_is_refused_and_not_kept(timed: KeyedStateStore, write: Write, ttl: Any) -> None:
    for wrong in ("tea", None, Visit("home", "long")):  # type: ignore[arg-type]
        with pytest.raises(
            sw.DeclaredTypeError,
            match=r"^(the (values|elements) of )?state 's' (is|are) declared as Visit, and .* was written\. Wri",
        ):
            write(timed, wrong, ttl)
    right = Visit("home", 3)  # an int where a float is declared
    assert write(timed, right, ttl) == right


class Bid(NamedTuple):
    price: int
    channel: str


def test_an_element_that_the_state_has_given_is_checked_no_second_time(
    new_backend: Callable[[], KeyedStateBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that drops elements one by one would check all others as often."""
    checked: list[Any] = []
    check = check_of(sw.ListStateDescriptor("s", Bid))
    assert check is not None
    monkeypatch.setattr(keyed_store, "check_of", lambda descriptor: lambda it: (checked.append(it), check(it)))
    store = KeyedStateStore(new_backend(), VirtualClock(0))
    store.current_key = "a"
    state = store.list_state(sw.ListStateDescriptor("s", Bid))
    bids = [Bid(number, "web") for number in range(100)]
    state.update(bids)
    assert len(checked) == 100
    while kept := state.get():
        state.update(kept[1:])
    assert len(checked) == 100
    state.update(bids[:2])
    with pytest.raises(sw.DeclaredTypeError):
        state.update([*state.get(), Bid("3", "web")])  # type: ignore[arg-type]
    assert state.get() == bids[:2]


def test_an_element_that_was_changed_in_place_is_checked_again(timed: KeyedStateStore) -> None:
    state = timed.list_state(sw.ListStateDescriptor("s", Visit))
    state.add(Visit("home", 3.0))
    (visit,) = state.get()
    visit.seconds = "long"  # type: ignore[assignment]
    with pytest.raises(sw.DeclaredTypeError):
        state.update([visit])


def test_the_message_has_the_state_the_type_the_value_and_what_to_do(timed: KeyedStateStore) -> None:
    state = timed.value_state(sw.ValueStateDescriptor("{total}", tuple[str, int]))
    with pytest.raises(sw.DeclaredTypeError) as caught:
        state.update(("a", "x" * 1_000))
    text = str(caught.value)
    assert text.startswith("state '{total}' is declared as tuple[str, int], and ('a', 'xxx")
    assert "(1009 characters) of type tuple was written" in text
    assert text.endswith(
        "declare in type= all types that the values have, or leave type= out: then they are pickled"
    )
    assert len(text) < 400
    assert isinstance(caught.value, TypeError)


def test_keys_of_maps_are_of_their_type_too(timed: KeyedStateStore) -> None:
    state = timed.map_state(sw.MapStateDescriptor("s", key_type=str))
    state["k"] = object
    with pytest.raises(
        sw.DeclaredTypeError, match=r"^the keys of state 's' are declared as str, and 3 of type int"
    ):
        state[3] = "any value"
    assert list(state) == ["k"]


def test_what_a_reduce_function_returns_is_checked(timed: KeyedStateStore) -> None:
    state = timed.reducing_state(sw.ReducingStateDescriptor("s", int, lambda old, new: str(new)))  # type: ignore
    state.add(1)
    with pytest.raises(sw.DeclaredTypeError, match="'2' of type str was written"):
        state.add(2)
    assert state.get() == 1


def test_state_of_no_type_takes_anything(timed: KeyedStateStore) -> None:
    for number, declared in enumerate((None, Any, object)):
        state = timed.value_state(sw.ValueStateDescriptor(f"s{number}", declared))
        for given in (1, "a", None, timed):
            state.update(given)
            assert state.value() is given


def test_operator_state_is_checked() -> None:
    class Keeping(sw.CheckpointedFunction, sw.MapFunction[Any, Any]):
        def initialize_state(self, context: Any) -> None:
            store = context.operator_state_store
            self.lists = [store.get_list_state(sw.ListStateDescriptor("l", int))]
            self.lists.append(store.get_union_list_state(sw.ListStateDescriptor("u", int)))

        def snapshot_state(self, context: Any) -> None:
            pass

        def map(self, value: Any) -> Any:
            for kept in self.lists:
                kept.add(1)
                for write, given in ((kept.add, value), (kept.add_all, [2, value]), (kept.update, [3, value])):
                    with pytest.raises(
                        sw.DeclaredTypeError, match=r"^the elements of state '.' are declared as int, and 'x'"
                    ):
                        write(given)
            return [kept.get() for kept in self.lists]

    with OperatorHarness(lambda s: s.map(Keeping())) as harness:
        assert harness.process("x") == [[[1], [1]]]


def test_broadcast_state_is_checked() -> None:
    rules = sw.MapStateDescriptor("rules", int, key_type=str)

    class Keeping(sw.BroadcastProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield dict(ctx.get_broadcast_state(rules))

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            state = ctx.get_broadcast_state(rules)
            state.put("a", 1)
            for key, given in ((value, "x"), (3, 3)):
                with pytest.raises(sw.DeclaredTypeError, match=r"state 'rules' (is|are) declared as"):
                    state.put(key, given)
                with pytest.raises(sw.DeclaredTypeError):
                    state[key] = given
                with pytest.raises(sw.DeclaredTypeError):
                    state.put_all({"b": 2, key: given})
            yield dict(state)

    flow = sw.Pipeline("rules")
    stream = flow.from_collection(["word"])
    found = stream.connect(flow.from_collection(["k"]).broadcast(rules)).process(Keeping()).collect()
    flow.run()
    assert {"a": 1} in list(found)
    assert all(seen in ({}, {"a": 1}) for seen in found)


def test_state_of_windows_is_checked() -> None:
    class Counting(sw.ProcessWindowFunction[Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            state = context.window_state().get_state(sw.ValueStateDescriptor("n", int))
            with pytest.raises(sw.DeclaredTypeError, match=r"^state '.*n' is declared as int, and 'x'"):
                state.update("x")
            total = context.window_state().get_reducing_state(sw.ReducingStateDescriptor("t", int, max))
            with pytest.raises(sw.DeclaredTypeError, match=r"^state '.*t' is declared as int, and 'x'"):
                total.add("x")
            yield state.value(), total.get()

    flow = sw.Pipeline("windows")
    words = flow.from_collection([("a", 1)], timestamp=lambda r: r[1]).key_by(lambda r: r[0])
    found = words.window(TumblingEventTimeWindows.of("10s")).process(Counting()).collect()
    flow.run()
    assert list(found) == [(None, None)]


class Summing(sw.KeyedProcessFunction[Any, Any, Any]):
    TOTAL = sw.ValueStateDescriptor("total", int, 0)

    def open(self, context: sw.RuntimeContext) -> None:
        self.total = context.get_state(self.TOTAL)

    def process_element(self, value: Any, ctx: Any) -> Any:
        word, amount = value
        self.total.update(amount if isinstance(amount, str) else self.total.value() + amount)
        yield word, self.total.value()


RECORDS = [("a", 1), ("b", 2), ("a", "three"), ("b", 4), ("a", 5)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"parallelism": 2}, {"batch_size": 1}, {"chaining": False}], ids=str)
def test_the_record_is_named_or_skipped_whatever_runs_the_job(backend: str, options: dict[str, Any]) -> None:
    def pipeline() -> tuple[sw.Pipeline, Any]:
        flow = sw.Pipeline("sums")
        return flow, flow.from_collection(RECORDS).key_by(lambda r: r[0]).process(Summing()).name("sum up")

    flow, sums = pipeline()
    sums.collect()
    with pytest.raises(sw.DeclaredTypeError, match=r"^state 'total' is declared as int, and 'three'") as caught:
        flow.run(state_backend=backend, **options)
    notes = "\n".join(caught.value.__notes__)
    assert "record: ('a', 'three')" in notes
    assert "sum up" in notes

    flow, sums = pipeline()
    dead, kept = sums.on_error("skip").dead_letters().collect(), sums.collect()
    flow.run(state_backend=backend, **options)
    assert sorted(kept) == [("a", 1), ("a", 6), ("b", 2), ("b", 6)]
    [letter] = dead
    assert letter.record == "('a', 'three')"
    assert letter.error.startswith("sluiceway.errors.DeclaredTypeError: state 'total' is declared as int")


def test_the_type_of_a_map_is_not_taken_for_that_of_its_values() -> None:
    class Keeping(sw.KeyedProcessFunction[Any, Any, Any]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.seen = context.get_map_state(sw.MapStateDescriptor("seen", dict[str, float]))

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.seen.put(value, 1.5)

    flow = sw.Pipeline("map")
    flow.from_collection(["word"]).key_by(str).process(Keeping()).print()
    says = r"^the values of state 'seen' are declared as dict\[str, float\], and 1.5 of type float was written"
    with pytest.raises(sw.DeclaredTypeError, match=says):
        flow.run()
