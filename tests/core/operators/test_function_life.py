"""Every function object, wherever it stands: its state is made, it is opened, it is closed, each exactly once."""

import inspect
from datetime import timedelta

import pytest

import sluiceway as sw
from sluiceway import functions, windows
from sluiceway.connector import Sink, SinkWriter
from sluiceway.testing import EOF, PAUSE, PipelineHarness, TestSource

RULES = sw.MapStateDescriptor("rules")


class Life(sw.CheckpointedFunction):
    """Notes what happens to it; fails where it is told to."""

    def __init__(self, log, fault=None):
        self.log = log
        self.fault = fault
        self.subtask = None

    def __deepcopy__(self, memo):
        return type(self)(self.log, self.fault)

    def initialize_state(self, context):
        assert self.subtask is None
        self.subtask = context.keyed_state_store.index_of_this_subtask
        context.operator_state_store.get_list_state(sw.ListStateDescriptor(type(self).__name__)).add(1)
        self.log.append((self.subtask, "initialize_state"))

    def snapshot_state(self, context):
        self.log.append((self.subtask, "snapshot_state"))

    def note_open(self):
        self.log.append((self.subtask, "open"))
        if self.fault == "open":
            raise ValueError("cannot open")

    def note_close(self):
        self.log.append((self.subtask, "close"))
        if self.fault == "close":
            raise ValueError("cannot close")

    def called(self):
        self.log.append((self.subtask, "called"))
        if self.fault == "record":
            raise ValueError("a bad record")


def give(name, kind, args):
    if name in ("map", "map1", "map2", "filter", "reduce") or (name == "join" and kind is sw.JoinFunction):
        return args[0]
    if name in ("create_accumulator", "add", "get_result", "merge"):
        return 0
    return []


def living(kind):
    """A function of this kind that does nothing in particular."""

    def method(name):
        if inspect.iscoroutinefunction(getattr(kind, name)):

            async def called(self, *args):
                self.called()
                return []
        else:

            def called(self, *args):
                self.called()
                return give(name, kind, args)

        return called

    if kind is sw.AsyncFunction:

        async def open_(self, context):
            self.note_open()

        async def close(self):
            self.note_close()
    else:

        def open_(self, context):
            assert context.index_of_this_subtask == self.subtask
            self.note_open()

        def close(self):
            self.note_close()

    body = {name: method(name) for name in kind.__abstractmethods__}
    return type(f"Living{kind.__name__}", (Life, kind), {**body, "open": open_, "close": close})


def keyed(stream):
    return stream.key_by(lambda n: n % 3)


def tumbling(stream):
    return stream.window(windows.TumblingEventTimeWindows.of(5))


def in_windows(both):
    return tumbling(both.where(lambda n: n % 3).equal_to(lambda n: n % 3))


PLACES = {
    "map": (sw.MapFunction, lambda a, b, f: a.map(f)),
    "fused map": (sw.MapFunction, lambda a, b, f: a.map(lambda n: n).map(f).filter(lambda n: True)),
    "flat_map": (sw.FlatMapFunction, lambda a, b, f: a.flat_map(f)),
    "filter": (sw.FilterFunction, lambda a, b, f: a.filter(f)),
    "process": (sw.ProcessFunction, lambda a, b, f: a.process(f)),
    "process in batches": (sw.BatchProcessFunction, lambda a, b, f: a.process(f)),
    "async": (sw.AsyncFunction, lambda a, b, f: a.async_map(f, timeout=timedelta(seconds=1))),
    "reduce": (sw.ReduceFunction, lambda a, b, f: keyed(a).reduce(f)),
    "aggregate": (sw.AggregateFunction, lambda a, b, f: keyed(a).aggregate(f)),
    "keyed process": (sw.KeyedProcessFunction, lambda a, b, f: keyed(a).process(f)),
    "keyed process in batches": (sw.KeyedBatchProcessFunction, lambda a, b, f: keyed(a).process(f)),
    "window reduce": (sw.ReduceFunction, lambda a, b, f: tumbling(keyed(a)).reduce(f)),
    "window aggregate": (sw.AggregateFunction, lambda a, b, f: tumbling(keyed(a)).aggregate(f)),
    "window process": (functions.ProcessWindowFunction, lambda a, b, f: tumbling(keyed(a)).process(f)),
    "reduced window": (
        functions.ProcessWindowFunction,
        lambda a, b, f: tumbling(keyed(a)).reduce(lambda x, y: y, f),
    ),
    "co map": (sw.CoMapFunction, lambda a, b, f: a.connect(b).map(f)),
    "co flat_map": (sw.CoFlatMapFunction, lambda a, b, f: keyed(a).connect(keyed(b)).flat_map(f)),
    "co process": (sw.CoProcessFunction, lambda a, b, f: a.connect(b).process(f)),
    "keyed co process": (sw.KeyedCoProcessFunction, lambda a, b, f: keyed(a).connect(keyed(b)).process(f)),
    "interval join": (
        sw.ProcessJoinFunction,
        lambda a, b, f: keyed(a).interval_join(keyed(b)).between(-5, 5).process(f),
    ),
    "as-of join": (sw.JoinFunction, lambda a, b, f: keyed(a).asof_join(keyed(b)).apply(f)),
    "window join": (sw.JoinFunction, lambda a, b, f: in_windows(a.join(b)).apply(f)),
    "co-group": (sw.CoGroupFunction, lambda a, b, f: in_windows(a.co_group(b)).apply(f)),
    "broadcast": (functions.BroadcastProcessFunction, lambda a, b, f: a.connect(b.broadcast(RULES)).process(f)),
    "keyed broadcast": (
        functions.KeyedBroadcastProcessFunction,
        lambda a, b, f: keyed(a).connect(b.broadcast(RULES)).process(f),
    ),
}


def run(place, fault, *, parallelism=1, cancel=False):
    kind, program = PLACES[place]
    log = []
    flow = sw.Pipeline("life", parallelism=parallelism)
    stamped = sw.Batch(list(range(20)), list(range(20)))
    end = PAUSE if cancel else EOF
    a, b = (flow.source(TestSource([stamped, end])).uid(name).set_parallelism(1).rebalance() for name in "ab")
    program(a, b, living(kind)(log, fault)).uid("here").collect()
    b.collect()
    with PipelineHarness(flow) as harness:
        if cancel:
            harness.run()
            harness.snapshot()
            harness.cancel()
        elif fault is None:
            harness.run_to_end()
        else:
            with pytest.raises(ValueError, match=r"cannot|bad record"):
                harness.run_to_end()
    return log


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["ends", "is cancelled", "open", "record", "close"])
def test_each_step_of_a_functions_life_comes_once(place, how):
    log = run(place, how if how in ("open", "record", "close") else None, cancel=how == "is cancelled")
    steps = [step for _, step in log if step != "called"]
    kept = ["snapshot_state"] if how == "is cancelled" else []
    assert steps == ["initialize_state", "open", *kept, "close"]
    assert log[-1] == (0, "close")
    if how in ("ends", "open"):
        assert ((0, "called") in log) == (how == "ends")


@pytest.mark.parametrize("place", PLACES)
def test_each_subtask_has_a_function_object_of_its_own(place):
    log = run(place, None, parallelism=3)
    for subtask in range(3):
        steps = [step for by, step in log if by == subtask and step != "called"]
        assert steps == ["initialize_state", "open", "close"]


@pytest.mark.parametrize("how", ["open", "close", "initialize_state"])
def test_what_fails_outside_of_records_names_the_step_and_not_its_neighbours(how):
    class Fails(living(sw.MapFunction)):
        def initialize_state(self, context):
            super().initialize_state(context)
            if how == "initialize_state":
                raise ValueError("cannot begin")

    flow = sw.Pipeline("life")
    stream = flow.source(TestSource([1, EOF])).map(lambda n: n).name("before")
    stream.map(Fails([], how)).name("mine").uid("mine").map(lambda n: n).name("after").collect()
    with PipelineHarness(flow) as harness, pytest.raises(ValueError, match="cannot") as failed:
        harness.run_to_end()
    assert any(note.startswith("in step 'mine' of '") for note in failed.value.__notes__), failed.value.__notes__


def test_what_was_never_opened_is_not_closed():
    first, second = [], []
    flow = sw.Pipeline("life")
    stream = flow.source(TestSource([1, EOF])).map(living(sw.MapFunction)(first))
    stream.map(living(sw.MapFunction)(second, "open")).collect()
    with PipelineHarness(flow) as harness, pytest.raises(ValueError, match="cannot open"):
        harness.run_to_end()
    assert [step for _, step in second] == ["initialize_state", "open", "close"]
    assert [step for _, step in first] == ["initialize_state"], "the tail is opened first"


class Writer(SinkWriter, sw.CheckpointedFunction):
    def __init__(self, log, fault):
        self.log, self.fault = log, fault

    def note(self, step):
        self.log.append(step)
        if self.fault == step:
            raise ValueError(f"cannot {step}")

    def initialize_state(self, context):
        self.note("initialize_state")

    def snapshot_state(self, context):
        self.note("snapshot_state")

    def open(self):
        self.note("open")

    def write(self, values, timestamps):
        self.note("write")

    def finish(self):
        self.note("finish")

    def close(self):
        self.note("close")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (None, ["initialize_state", "open", "write", "finish", "close"]),
        ("initialize_state", ["initialize_state", "close"]),
        ("open", ["initialize_state", "open", "close"]),
        ("write", ["initialize_state", "open", "write", "close"]),
        ("finish", ["initialize_state", "open", "write", "finish", "close"]),
        ("close", ["initialize_state", "open", "write", "finish", "close"]),
    ],
)
def test_a_sinks_writer_is_closed_once_whatever_fails(fault, expected):
    log = []

    class Written(Sink):
        def create_writer(self, context):
            return Writer(log, fault)

    flow = sw.Pipeline("life")
    flow.source(TestSource([1, EOF])).sink(Written())
    with PipelineHarness(flow) as harness:
        if fault is None:
            harness.run_to_end()
        else:
            with pytest.raises(ValueError, match=f"cannot {fault}"):
                harness.run_to_end()
    assert log == expected


# ---- what would never be opened ----------------------------------------------------------------------------


class Opened(sw.KeySelector, sw.Function):
    def get_key(self, value):
        return value


class Bare(sw.Function):
    def __call__(self, *args):
        return 0


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda s: s.key_by(Opened()),
            r"key_by\(\) at .*: Opened computes keys for all subtasks.*KeySelector alone",
        ),
        (lambda s: s.key_by(Bare()), "Bare is a Function of no such kind: derive it from KeySelector"),
        (
            lambda s: s.map(Bare()),
            "takes a callable or a MapFunction; Bare is a Function of no such kind: derive it",
        ),
        (lambda s: s.for_each(Bare()), "takes a callable; Bare is a Function of no such kind, which nobody would"),
        (lambda s: s.partition_custom(Bare(), str), "takes a callable; Bare is a Function of no such kind"),
        (lambda s: s.for_each(5), r"takes a callable, not 5 \(int\)"),
    ],
)
def test_a_function_that_nobody_would_open_is_refused(use, message):
    with pytest.raises(TypeError, match=message):
        use(sw.Pipeline("p").from_collection([1]))
