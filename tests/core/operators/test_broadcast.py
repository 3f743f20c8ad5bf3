"""The broadcast state pattern by itself: look-ups, the read-only side, keyed state, timers, restores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import StateError
from sluiceway.operators import broadcast
from sluiceway.testing import TwoInputOperatorHarness

RULES = sw.MapStateDescriptor("rules", int, key_type=str)
OTHER = sw.MapStateDescriptor("other")
SEEN = sw.ValueStateDescriptor("seen", int, default=0)
UNKNOWN = sw.OutputTag[Any]("unknown")


def first_of(value: Any) -> Any:
    return value[0]


class Price(sw.BroadcastProcessFunction[str, Any, Any]):
    def process_element(self, value: str, ctx: sw.BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        price = ctx.get_broadcast_state(RULES).get(value)
        if price is None:
            ctx.output(UNKNOWN, value)
        else:
            yield value, price

    def process_broadcast_element(self, value: Any, ctx: sw.BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(*value)


class Alert(sw.KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Counts per key up to the limit in the rules; a timer says what was counted 10 ms after the first."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(SEEN)

    def process_element(self, value: Any, ctx: sw.KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        if self.seen.value() == 0:
            ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)
        self.seen.update(self.seen.value() + 1)
        limit = ctx.get_broadcast_state(RULES).get("limit", 2)
        if self.seen.value() > limit:
            yield "over", ctx.get_current_key(), self.seen.value()

    def process_broadcast_element(
        self, value: Any, ctx: sw.KeyedBroadcastProcessFunction.Context
    ) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES)["limit"] = value
        over: list[Any] = []

        def look(key: str, seen: sw.ValueState[int]) -> None:
            if seen.value() > value:
                over.append(("now over", key, seen.value()))
                seen.clear()

        ctx.apply_to_keyed_state(SEEN, look)
        yield from over

    def on_timer(self, timestamp: int, ctx: sw.KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), self.seen.value(), dict(ctx.get_broadcast_state(RULES)), timestamp


def looked_up(function: Any, *descriptors: Any) -> Any:
    return lambda a, b: a.connect(b.broadcast(RULES, *descriptors)).process(function)


def keyed(function: Any) -> Any:
    return lambda a, b: a.key_by(first_of).connect(b.broadcast(RULES)).process(function)


class Probe(sw.BroadcastProcessFunction[Any, Any, Any]):
    """Does what the records say."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return value(ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return value(ctx)


class KeyedProbe(sw.KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.states = {
            SEEN: context.get_state(SEEN),
            LISTED: context.get_list_state(LISTED),
            MAPPED: context.get_map_state(MAPPED),
            REDUCED: context.get_reducing_state(REDUCED),
        }

    def process_element(self, value: Any, ctx: Any) -> Any:
        return value[1](ctx, self.states)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return value(ctx, self.states)


LISTED = sw.ListStateDescriptor("listed")
MAPPED = sw.MapStateDescriptor("mapped")
REDUCED = sw.ReducingStateDescriptor("reduced", reduce=max)


class TestWithoutKeys:
    @pytest.mark.parametrize("parallelism", [1, 3])
    def test_every_subtask_looks_up_what_was_broadcast(self, parallelism: int) -> None:
        with TwoInputOperatorHarness(looked_up(Price()), parallelism=parallelism) as harness:
            harness.process_batch1(["a", "b", "c"], [1, 2, 3])
            assert sorted(harness.side_records(UNKNOWN)) == [("a", 1), ("b", 2), ("c", 3)]
            harness.process_batch2([("a", 10), ("b", 20), ("a", 11)])
            assert sorted(harness.process_batch1(["a", "b", "c"] * 2, [4, 5, 6, 7, 8, 9])) == [
                ("a", 11), ("a", 11), ("b", 20), ("b", 20),
            ]  # fmt: skip
            assert sorted(harness.side_output(UNKNOWN)) == ["a", "b", "c", "c", "c"]

    def test_the_state_is_a_mapping(self) -> None:
        def fill(ctx: Any) -> Any:
            state = ctx.get_broadcast_state(RULES)
            assert state.is_empty()
            state.put("a", 1)
            state.put_all({"b": 2, "c": 3})
            state["d"] = 4
            state.remove("b")
            state.remove("nothing")
            del state["c"]
            return [dict(state), len(state), "a" in state, state.contains("b"), state.get("b", 0), state["d"]]

        def look(ctx: Any) -> Any:
            state = ctx.get_broadcast_state(RULES)
            return [list(state.items()), list(state), state.contains("a"), "b" in state, state.get("x"), not state]

        def empty(ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES).clear()

        with TwoInputOperatorHarness(looked_up(Probe())) as harness:
            assert harness.process2(fill) == [{"a": 1, "d": 4}, 2, True, False, 0, 4]
            assert harness.process1(look) == [[("a", 1), ("d", 4)], ["a", "d"], True, False, None, False]
            harness.process2(empty)
            assert harness.process1(lambda ctx: [ctx.get_broadcast_state(RULES).is_empty()]) == [True]

    @pytest.mark.parametrize(
        "write",
        [
            lambda state: state.put("a", 1),
            lambda state: state.put_all({"a": 1}),
            lambda state: state.remove("a"),
            lambda state: state.clear(),
            lambda state: state.__setitem__("a", 1),
            lambda state: state.__delitem__("a"),
            lambda state: state.update(a=1),
            lambda state: state.setdefault("a", 1),
            lambda state: state.pop("a"),
        ],
    )
    def test_records_of_the_stream_cannot_write(self, write: Any) -> None:
        with (
            TwoInputOperatorHarness(looked_up(Probe())) as harness,
            pytest.raises(StateError, match=r"broadcast state 'rules' is read-only outside process_broadcast_el"),
        ):
            harness.process1(lambda ctx: write(ctx.get_broadcast_state(RULES)))

    def test_a_handle_kept_for_later_does_not_help(self) -> None:
        kept: list[Any] = []
        with TwoInputOperatorHarness(looked_up(Probe())) as harness:
            harness.process2(lambda ctx: kept.append(ctx.get_broadcast_state(RULES)))
            for write in (lambda ctx: kept[0].put("a", 1), lambda ctx: kept[0].__delitem__("a")):
                with pytest.raises(StateError, match="is read-only outside"):
                    harness.process1(write)
            assert dict(kept[0]) == {}

    def test_what_was_not_declared_is_refused(self) -> None:
        with TwoInputOperatorHarness(looked_up(Probe(), OTHER)) as harness:
            with pytest.raises(
                StateError, match=r"for broadcast state 'x', but broadcast\(\) was given 'rules', 'o"
            ):
                harness.process1(lambda ctx: ctx.get_broadcast_state(sw.MapStateDescriptor("x")))
            with pytest.raises(
                StateError, match=r"'rules' with other types than broadcast\(\) was given: use one"
            ):
                harness.process2(lambda ctx: ctx.get_broadcast_state(sw.MapStateDescriptor("rules", str)))
            with pytest.raises(StateError, match=r"takes the MapStateDescriptor that was given .*, not 'rules'"):
                harness.process1(lambda ctx: ctx.get_broadcast_state("rules"))
            same = sw.MapStateDescriptor("rules", int, key_type=str)
            assert harness.process1(lambda ctx: list(ctx.get_broadcast_state(same))) == []

    def test_there_is_nothing_keyed(self) -> None:
        with TwoInputOperatorHarness(looked_up(Probe())) as harness:
            with pytest.raises(StateError, match=r"asks for timers but its input is not keyed"):
                harness.process1(lambda ctx: ctx.timer_service())
            for ask in (lambda ctx: ctx.timer_service(), lambda ctx: ctx.get_current_key()):
                with pytest.raises(
                    StateError, match=r"asks for (timers|a key), but a broadcast record belongs to no"
                ):
                    harness.process2(ask)
            with pytest.raises(StateError, match=r"asks for keyed state, but"):
                harness.process2(lambda ctx: ctx.apply_to_keyed_state(SEEN, print))


class TestWithKeys:
    def test_keyed_state_and_timers_on_the_keyed_side(self) -> None:
        with TwoInputOperatorHarness(keyed(Alert())) as harness:
            assert harness.process_batch1(["a1", "b1", "a2"], [100, 101, 102]) == []
            assert harness.process1("a3", 103) == [("over", "a", 3)]
            assert harness.process2(5) == []
            assert harness.process1("a4", 104) == []
            assert harness.process_watermark1(200) == []
            assert harness.process_watermark2(110) == [("a", 4, {"limit": 5}, 110)]

    @pytest.mark.parametrize("parallelism", [1, 2, 4])
    def test_a_broadcast_record_reaches_the_state_of_every_key(self, parallelism: int) -> None:
        with TwoInputOperatorHarness(keyed(Alert()), parallelism=parallelism) as harness:
            harness.process2(9)
            harness.process_batch1([f"{key}{n}" for key in "abcdef" for n in range(ord(key) - ord("a") + 1)])
            assert sorted(harness.process2(3)) == [
                ("now over", "d", 4),
                ("now over", "e", 5),
                ("now over", "f", 6),
            ]
            assert harness.process2(3) == [], "the others were cleared"
            assert harness.process1("c") == [("over", "c", 4)]

    def test_all_kinds_of_keyed_state_can_be_walked(self) -> None:
        def fill(ctx: Any, states: Any) -> None:
            number = ord(ctx.get_current_key())
            states[LISTED].add(number)
            states[MAPPED].put("n", number)
            states[REDUCED].add(number)

        def walk(ctx: Any, states: Any) -> Any:
            found: list[Any] = []
            ctx.apply_to_keyed_state(LISTED, lambda key, state: found.append((key, state.get())))
            ctx.apply_to_keyed_state(MAPPED, lambda key, state: found.append((key, dict(state.items()))))
            ctx.apply_to_keyed_state(REDUCED, lambda key, state: found.append((key, state.get())))
            ctx.apply_to_keyed_state(SEEN, lambda key, state: found.append((key, state.value())))
            return found

        with TwoInputOperatorHarness(keyed(KeyedProbe())) as harness:
            harness.process_batch1([("a", fill), ("b", fill)])
            assert harness.process2(walk) == [
                ("a", [97]), ("b", [98]), ("a", {"n": 97}), ("b", {"n": 98}), ("a", 97), ("b", 98),
            ]  # fmt: skip

    def test_objects_of_few_keys_are_lent_at_once_while_all_are_walked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("rocksdict")
        monkeypatch.setattr(broadcast, "_SETTLED", 2, raising=False)
        lent: list[int] = []

        def fill(ctx: Any, states: Any) -> None:
            states[LISTED].add([ctx.get_current_key()])

        def walk(ctx: Any, states: Any) -> None:
            def change(key: str, state: Any) -> None:
                state.get()[0].append("changed")
                lent.append(sum(map(len, table.lent.values())))

            ctx.apply_to_keyed_state(LISTED, change)

        with TwoInputOperatorHarness(keyed(KeyedProbe()), state_backend="rocksdb") as harness:
            harness.process_batch1([(key, fill) for key in "abcde"])
            (operator,) = harness._subtasks[0].operators
            table = operator.store.table(LISTED)  # type: ignore[attr-defined]
            harness.process2(walk)
            assert lent == [1, 2, 1, 2, 1]
            found = harness.process_batch1([(key, lambda ctx, states: states[LISTED].get()) for key in "abcde"])
            assert found == [[key, "changed"] for key in "abcde"]

    def test_keyed_state_has_no_key_for_a_broadcast_record(self) -> None:
        with TwoInputOperatorHarness(keyed(KeyedProbe())) as harness:
            harness.process1(("a", lambda ctx, states: states[SEEN].update(1)))
            with pytest.raises(
                StateError, match=r"'seen' is used without a current key.*nor for a broadcast record"
            ):
                harness.process2(lambda ctx, states: states[SEEN].value())
            with pytest.raises(StateError, match="'seen' is used without a current key"):
                harness.process2(
                    lambda ctx, states: [
                        ctx.apply_to_keyed_state(SEEN, lambda key, state: None),
                        states[SEEN].value(),
                    ]
                )
            for wrong in (sw.state.StateDescriptor("x"), "seen"):
                with pytest.raises(StateError, match=r"takes the descriptor of a keyed state, not (State|'seen')"):
                    harness.process2(
                        lambda ctx, states, wrong=wrong: ctx.apply_to_keyed_state(wrong, lambda key, state: None)
                    )
            with pytest.raises(StateError, match="takes the descriptor of a keyed state, not <"):
                harness.process2(
                    lambda ctx, states: ctx.apply_to_keyed_state(states[SEEN], lambda key, state: None)
                )

    def test_timers_cannot_write(self) -> None:
        class Write(Alert):
            def on_timer(self, timestamp: int, ctx: Any) -> Any:
                ctx.get_broadcast_state(RULES).put("limit", 1)

        with TwoInputOperatorHarness(keyed(Write())) as harness:
            harness.process1("a", 1)
            with pytest.raises(StateError, match="is read-only outside"):
                harness.process_watermark(11)


class TestSnapshots:
    @pytest.mark.parametrize("before", [1, 2, 3])
    @pytest.mark.parametrize("after", [1, 2, 4])
    def test_every_subtask_gets_one_copy(self, before: int, after: int) -> None:
        with TwoInputOperatorHarness(keyed(Alert()), parallelism=before) as harness:
            harness.process2(5)
            harness.process_batch1(list("abcdefgh"), list(range(100, 108)))
            snapshot = harness.snapshot()
            harness.process2(0)
        assert [s.broadcast for s in snapshot.operators] == [{"rules": {"limit": 5}}] * before
        with TwoInputOperatorHarness(keyed(Alert()), parallelism=after, restored=snapshot) as harness:
            fired = sorted(harness.process_watermark(200))
            assert fired == [(k, 1, {"limit": 5}, 110 + i) for i, k in enumerate("abcdefgh")]
            assert len(harness.snapshot().operators) == after

    def test_later_changes_do_not_show_in_a_snapshot(self) -> None:
        def grow(ctx: Any) -> None:
            state = ctx.get_broadcast_state(OTHER)
            state.put("list", [*state.get("list", []), 1])
            state["list"].append(2)

        harness = TwoInputOperatorHarness(looked_up(Probe(), OTHER))
        harness.process2(grow)
        (operator,) = harness._subtasks[0].operators
        taken = operator.snapshot()
        harness.process2(grow)
        assert taken.broadcast == {"rules": {}, "other": {"list": [1, 2]}}
        harness.close()

    def test_what_cannot_be_copied_is_named(self) -> None:
        import threading

        with TwoInputOperatorHarness(looked_up(Probe(), OTHER)) as harness:
            harness.process2(lambda ctx: ctx.get_broadcast_state(OTHER).put("lock", threading.Lock()))
            with pytest.raises(
                StateError, match=r"broadcast state 'other' of step '.*Probe\)' holds what cannot be co"
            ):
                harness.snapshot()

    def test_a_state_that_is_not_declared_for_a_while_stays(self) -> None:
        with TwoInputOperatorHarness(looked_up(Probe(), OTHER)) as harness:
            harness.process2(lambda ctx: ctx.get_broadcast_state(OTHER).put("kept", 1))
            snapshot = harness.snapshot()
        with TwoInputOperatorHarness(looked_up(Probe()), restored=snapshot) as harness:
            snapshot = harness.snapshot()
        with TwoInputOperatorHarness(looked_up(Probe(), OTHER), restored=snapshot) as harness:
            assert harness.process1(lambda ctx: [dict(ctx.get_broadcast_state(OTHER))]) == [{"kept": 1}]


# ---- a model: one dict for the rules, one for the counts ------------------------------------------------------

EVENTS = st.lists(
    st.one_of(st.tuples(st.just(1), st.sampled_from("abcd")), st.tuples(st.just(2), st.integers(0, 4))),
    max_size=30,
)


class Limits(Alert):
    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(SEEN)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update(self.seen.value() + 1)
        yield ctx.get_current_key(), self.seen.value(), ctx.get_broadcast_state(RULES).get("limit")


def expected(events: list[tuple[int, Any]]) -> list[list[Any]]:
    limit: int | None = None
    counts: dict[str, int] = {}
    out: list[list[Any]] = []
    for port, value in events:
        if port == 1:
            counts[value] = counts.get(value, 0) + 1
            out.append([(value, counts[value], limit)])
        else:
            limit = value
            over = sorted(key for key, count in counts.items() if count > value)
            out.append([("now over", key, counts.pop(key)) for key in over])
    return out


@given(events=EVENTS, parallelism=st.integers(1, 3), stops=st.sets(st.integers(0, 29), max_size=4))
@settings(deadline=None, max_examples=60)
def test_rules_and_counts_are_those_of_two_dicts(
    events: list[tuple[int, Any]], parallelism: int, stops: set[int]
) -> None:
    program = keyed(Limits())
    harness = TwoInputOperatorHarness(program, parallelism=parallelism)
    values = []
    for number, (port, value) in enumerate(events):
        values.append(sorted(harness.process1(value) if port == 1 else harness.process2(value)))
        if number in stops:
            snapshot = harness.snapshot()
            harness.close()
            parallelism = parallelism % 3 + 1
            harness = TwoInputOperatorHarness(program, parallelism=parallelism, restored=snapshot)
    harness.close()
    assert values == expected(events)
