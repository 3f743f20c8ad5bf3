"""Operator state: lists of a subtask, dealt out anew when the parallelism changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.connector import Sink, SinkWriter
from sluiceway.errors import SerializationError, StateError
from sluiceway.functions import FunctionInitializationContext, FunctionSnapshotContext
from sluiceway.operators.operator_state import ListMode, SubtaskLists, share_of_lists
from sluiceway.testing import EOF, PAUSE, OperatorHarness, PipelineHarness, TestSource

SEEN = sw.ListStateDescriptor("seen", int)


class Remembering(sw.CheckpointedFunction):
    """Keeps all records in a list and in a union list."""

    closed = opened = 0

    def initialize_state(self, context):
        assert isinstance(context, FunctionInitializationContext)
        assert not self.opened, "the state comes before open()"
        self.is_restored = context.is_restored
        self.seen = context.operator_state_store.get_list_state(SEEN)
        self.union = context.operator_state_store.get_union_list_state(sw.ListStateDescriptor("all"))
        self.all = self.union.get()
        self.snapshots = []

    def snapshot_state(self, context):
        assert isinstance(context, FunctionSnapshotContext)
        self.snapshots.append(context.checkpoint_timestamp)
        self.union.update([("by", value) for value in self.seen.get()])

    def open(self, context):
        self.opened += 1

    def close(self):
        self.closed += 1


class Mapping(Remembering, sw.MapFunction[int, tuple]):
    def map(self, value):
        self.seen.add(value)
        return self.seen.get(), self.all


class Filtering(Remembering, sw.FilterFunction[int]):
    def filter(self, value):
        self.seen.add(value)
        return True


class FlatMapping(Remembering, sw.FlatMapFunction[int, tuple]):
    def flat_map(self, value):
        self.seen.add(value)
        return [(self.seen.get(), self.all)]


class Processing(Remembering, sw.ProcessFunction[int, tuple]):
    def process_element(self, value, ctx):
        self.seen.add(value)
        yield self.seen.get(), self.all


class KeyedProcessing(Remembering, sw.KeyedProcessFunction[int, int, tuple]):
    def process_element(self, value, ctx):
        self.seen.add(value)
        yield self.seen.get(), self.all


class Reducing(Remembering, sw.ReduceFunction[int]):
    def reduce(self, value1, value2):
        self.seen.add(value2)
        return (value2, self.seen.get(), self.all)


class Aggregating(Remembering, sw.AggregateFunction[int, int, tuple]):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        self.seen.add(value)
        return accumulator + value

    def get_result(self, accumulator):
        return self.seen.get(), self.all


STEPS = {
    "map": lambda s: s.map(Mapping()),
    "flat_map": lambda s: s.flat_map(FlatMapping()),
    "process": lambda s: s.process(Processing()),
    "keyed process": lambda s: s.key_by(lambda n: 0).process(KeyedProcessing()),
    "reduce": lambda s: s.key_by(lambda n: 0).reduce(Reducing()).filter(lambda r: r != 0),
    "aggregate": lambda s: s.key_by(lambda n: 0).aggregate(Aggregating()),
}


# ---- in every step -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_every_function_object_may_have_operator_state(step):
    program = STEPS[step]
    records = [0, 1, 2] if step == "reduce" else [1, 2]  # the first record of a key is not reduced
    with OperatorHarness(lambda s: program(s).map(lambda r: r[-2:]).uid("last")) as harness:
        harness.process_batch(records)
        assert harness.values[-1] == ([1, 2], [])
        snapshot = harness.snapshot()
        harness.process(3)
        assert harness.values[-1] == ([1, 2, 3], [])
    with OperatorHarness(lambda s: program(s).map(lambda r: r[-2:]).uid("last"), restored=snapshot) as harness:
        assert harness.process(4) == [([1, 2, 4], [("by", 1), ("by", 2)])], "nothing of what came after"


def test_fused_steps_have_state_of_their_own():
    a, b = Filtering(), Mapping()
    with OperatorHarness(lambda s: s.filter(a).uid("a").map(lambda n: n * 10).map(b).uid("b")) as harness:
        assert len(harness._subtasks[0].operators) == 1, "one loop"
        harness.process_batch([1, 2])
        snapshot = harness.snapshot()
        assert a.snapshots == b.snapshots == [0]
        assert not a.is_restored
    c, d = Filtering(), Mapping()
    with OperatorHarness(lambda s: s.map(d).uid("b"), restored=snapshot, allow_dropped_state=True):
        assert d.seen.get() == [10, 20]
    with OperatorHarness(
        lambda s: s.filter(c).uid("a").map(Mapping()).uid("c"), restored=snapshot, allow_dropped_state=True
    ):
        assert c.seen.get() == [1, 2]
        assert c.is_restored
    assert (c.opened, c.closed) == (1, 1)


def test_keyed_state_can_be_had_where_the_operator_state_is():
    class Counting(sw.CheckpointedFunction, sw.KeyedProcessFunction[str, str, tuple]):
        def initialize_state(self, context):
            self.count = context.keyed_state_store.get_state(sw.ValueStateDescriptor("count", int, 0))

        def snapshot_state(self, context):
            pass

        def process_element(self, value, ctx):
            self.count.update(self.count.value() + 1)
            yield value, self.count.value()

    with OperatorHarness(lambda s: s.key_by(str).process(Counting())) as harness:
        assert harness.process_batch(["a", "a", "b"]) == [("a", 1), ("a", 2), ("b", 1)]
    with pytest.raises(StateError, match="asks for keyed state 'count' but its input is not keyed"):
        OperatorHarness(lambda s: s.map(Keyless()))


class Keyless(sw.CheckpointedFunction, sw.MapFunction):
    def initialize_state(self, context):
        context.keyed_state_store.get_state(sw.ValueStateDescriptor("count"))

    def snapshot_state(self, context):
        pass

    def map(self, value):
        return value


class Buffered(Sink[int]):
    """Writes five at a time; what waits is operator state."""

    def __init__(self, written):
        self.written = written

    def create_writer(self, context):
        return BufferedWriter(self.written)


class BufferedWriter(SinkWriter[int], sw.CheckpointedFunction):
    def __init__(self, written):
        self.written = written
        self.waiting = None

    def initialize_state(self, context):
        self.state = context.operator_state_store.get_list_state(sw.ListStateDescriptor("waiting", int))
        self.waiting = self.state.get()

    def snapshot_state(self, context):
        self.state.update(self.waiting)

    def open(self):
        assert self.waiting is not None

    def write(self, values, timestamps):
        self.waiting += values
        while len(self.waiting) >= 5:
            self.written.append(self.waiting[:5])
            del self.waiting[:5]

    def finish(self):
        self.written.append(self.waiting)

    def flush(self):
        pass


def test_a_sinks_writer_may_have_operator_state():
    def flow(written, *script):
        pipeline = sw.Pipeline("buffered")
        pipeline.source(TestSource(script)).uid("in").sink(Buffered(written)).uid("out")
        return pipeline

    first, second = [], []
    with PipelineHarness(flow(first, 1, 2, 3, 4, 5, 6, 7, PAUSE, 8, EOF)) as harness:
        harness.run()
        snapshot = harness.snapshot()
    assert first == [[1, 2, 3, 4, 5]]
    with PipelineHarness(flow(second, *[1, 2, 3, 4, 5, 6, 7], 8, EOF), restored=snapshot) as harness:
        harness.run_to_end()
    assert second == [[6, 7, 8]]


# ---- at another parallelism --------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    parallelisms=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    records=st.lists(st.integers(0, 9), max_size=10),
)
def test_lists_are_dealt_out_and_unions_go_to_all(parallelisms, records):
    snapshot, expected = None, []
    for parallelism in parallelisms:
        made = []

        class Here(Mapping):
            def open(self, context, made=made):
                made.append((context.index_of_this_subtask, self))

        with OperatorHarness(
            lambda s, here=Here: s.map(here()), parallelism=parallelism, restored=snapshot
        ) as harness:
            functions = [function for _, function in sorted(made, key=lambda pair: pair[0])]
            held = [f.seen.get() for f in functions]
            assert sorted(n for part in held for n in part) == sorted(expected)
            assert max(map(len, held)) - min(map(len, held)) <= 1, "dealt out evenly"
            for function in functions:
                assert sorted(function.all) == sorted(("by", n) for n in expected)
            # the harness gives records without a key to the subtasks in turn: fill up evenly
            for function in functions:
                for n in records:
                    function.seen.add(n)
            expected = expected + records * parallelism
            snapshot = harness.snapshot()


def test_at_the_same_parallelism_each_subtask_has_its_own_again():
    made = []

    class Here(Mapping):
        def open(self, context):
            made.append(self)

    with OperatorHarness(lambda s: s.map(Here()), parallelism=3) as harness:
        for i, function in enumerate(made):
            function.seen.add_all([i] * (i + 1))
        snapshot = harness.snapshot()
    made.clear()
    with OperatorHarness(lambda s: s.map(Here()), parallelism=3, restored=snapshot):
        assert [f.seen.get() for f in made] == [[0], [1, 1], [2, 2, 2]]


def test_a_whole_job_deals_them_out_as_well():
    def flow(parallelism, functions, *script):
        class Here(Mapping):
            def open(self, context):
                functions[context.index_of_this_subtask] = self

        pipeline = sw.Pipeline("lists", parallelism=parallelism)
        stream = pipeline.source(TestSource(script)).uid("in").set_parallelism(1).rebalance()
        # A fused step in front: the function's step is not the head of its chain.
        stream.map(lambda n: n + 1).uid("plus").map(Here()).uid("here").collect()
        return pipeline

    with PipelineHarness(flow(2, {}, *range(7), PAUSE, EOF)) as harness:
        harness.run()
        snapshot = harness.snapshot()
    for parallelism in (1, 2, 3, 4):
        functions = {}
        with PipelineHarness(flow(parallelism, functions, *range(7), PAUSE, EOF), restored=snapshot) as harness:
            harness.run()
            assert len(functions) == parallelism
            assert sorted(n for f in functions.values() for n in f.seen.get()) == list(range(1, 8))
            assert all(len(f.all) == 7 and f.is_restored for f in functions.values())


def test_state_of_a_step_that_is_gone_is_refused():
    def flow(uid):
        pipeline = sw.Pipeline("lists")
        pipeline.source(TestSource([1, PAUSE, EOF])).uid("in").map(Mapping()).uid(uid).collect()
        return pipeline

    with PipelineHarness(flow("here")) as harness:
        harness.run()
        snapshot = harness.snapshot()
    with pytest.raises(StateError, match="the snapshot has state of 'here', which no step of job 'lists' goes by"):
        PipelineHarness(flow("there"), restored=snapshot)


# ---- the lists themselves ----------------------------------------------------------------------------------


def store(restored=(), subtask=0, parallelism=1):
    return SubtaskLists("step", subtask, parallelism, share_of_lists(restored, subtask, parallelism))


def test_what_a_snapshot_holds_does_not_change_any_more():
    lists = store()
    state = lists.get_list_state(sw.ListStateDescriptor("s"))
    value = {"a": [1]}
    state.add(value)
    snapshot = lists.snapshot()
    value["a"].append(2)
    state.clear()
    assert store(snapshot).get_list_state(sw.ListStateDescriptor("s")).get() == [{"a": [1]}]


def test_a_name_is_one_list():
    lists = store()
    a, b = (lists.get_list_state(SEEN) for _ in "ab")
    a.add(1)
    a.add_all([2, 3])
    assert b.get() == [1, 2, 3]
    b.update(n + 1 for n in b.get())
    assert a.get() == [2, 3, 4]
    a.get().append(5)
    assert a.get() == [2, 3, 4]


@pytest.mark.parametrize("mode", ["get_list_state", "get_union_list_state"])
def test_a_list_that_nobody_asks_for_is_kept_once(mode):
    lists = store()
    getattr(lists, mode)(SEEN).add_all([1, 2, 3])
    kept = lists.snapshot()
    for parallelism in (2, 3):
        kept = [k for i in range(parallelism) for k in store(kept, i, parallelism).snapshot()]
    assert len(kept) == (3 if mode == "get_list_state" else 1)
    parts = [getattr(store(kept, i, 2), mode)(SEEN).get() for i in (0, 1)]
    assert parts == ([[1, 2], [3]] if mode == "get_list_state" else [[1, 2, 3]] * 2)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda s: s.get_union_list_state(SEEN),
            "'seen' of operator 'step' .*holds a list of int .*declares a union",
        ),
        (
            lambda s: s.get_list_state(sw.ListStateDescriptor("seen", str)),
            "list of int .* the job declares .* of str",
        ),
        (
            lambda s: s.get_list_state(sw.ListStateDescriptor("seen")),
            "the job declares a list of values of no decl",
        ),
    ],
)
def test_another_kind_or_type_is_refused(declare, message):
    lists = store()
    lists.get_list_state(SEEN).add(1)
    with pytest.raises(StateError, match=message):
        declare(store(lists.snapshot()))
    with pytest.raises(StateError, match=r"'seen' of operator 'step' is declared twice: as a list of int"):
        declare(lists)


def test_what_cannot_be_a_list_is_refused():
    with pytest.raises(
        StateError, match="a list is declared by a ListStateDescriptor, not by ValueStateDescriptor"
    ):
        store().get_list_state(sw.ValueStateDescriptor("s"))
    with pytest.raises(StateError, match="'s' of operator 'step' cannot have a time to live"):
        store().get_list_state(sw.ListStateDescriptor("s", ttl=sw.StateTtlConfig(1)))
    lists = store()
    lists.get_union_list_state(sw.ListStateDescriptor("s")).add(lambda: None)
    with pytest.raises(SerializationError, match=r"operator state 's' of operator 'step': .*pickled"):
        lists.snapshot()
    assert ListMode.UNION.value == "union list"
