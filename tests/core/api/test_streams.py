"""What the methods of a stream make, and what they refuse."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector.lib import CollectionSource, DiscardSink
from sluiceway.errors import GraphError
from sluiceway.steps import FlatMapStep, KeyedReduceStep, MapStep
from sluiceway.streamgraph import ChainingStrategy, StreamEdge, StreamNode


class Twice(sw.MapFunction[int, int]):
    def map(self, value: int) -> int:
        return value * 2


class Odd(sw.FilterFunction[int]):
    def filter(self, value: int) -> bool:
        return value % 2 == 1


class Keyed(sw.KeyedProcessFunction[int, int, int]):
    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None: ...


@pytest.fixture
def flow() -> sw.Pipeline:
    return sw.Pipeline("test")


@pytest.fixture
def numbers(flow: sw.Pipeline) -> sw.DataStream[int]:
    return flow.from_collection([1, 2, 3])


def node(flow: sw.Pipeline, name: str) -> StreamNode:
    return next(n for n in flow.graph().nodes if n.name == name)


def edges(flow: sw.Pipeline) -> list[tuple[str, str, str]]:
    graph = flow.graph()

    def shown(edge: StreamEdge) -> tuple[str, str, str]:
        return graph.node(edge.source).name, edge.partitioner.name, graph.node(edge.target).name

    return [shown(e) for e in graph.edges]


def test_steps_follow_one_another(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    numbers.map(str).flat_map(list).print()
    assert [type(n.step) for n in flow.graph().nodes][1:3] == [MapStep, FlatMapStep]


def test_a_stream_used_twice_is_one_step_with_two_edges(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    doubled = numbers.map(Twice()).name("doubled")
    doubled.print().name("a")
    doubled.print().name("b")
    assert [e for e in edges(flow) if e[0] == "doubled"] == [
        ("doubled", "forward", "a"),
        ("doubled", "forward", "b"),
    ]


def test_settings_reach_the_node(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    stream = numbers.map(str)
    same = (
        stream.name("text")
        .uid("text-1")
        .set_description("Numbers as text")
        .set_parallelism(3)
        .set_max_parallelism(64)
        .slot_sharing_group("mine")
        .co_location_group("ours")
        .set_buffer_timeout(timedelta(seconds=1))
        .start_new_chain()
        .returns(str)
    )
    assert same is stream
    stream.print()
    made = node(flow, "text")
    assert (made.uid, made.uid_given, made.parallelism, made.max_parallelism) == ("text-1", True, 3, 64)
    assert (made.slot_sharing_group, made.buffer_timeout_ms, made.chaining) == (
        "mine",
        1000,
        ChainingStrategy.HEAD,
    )
    assert made.co_location_group == "ours"
    assert made.description == "Numbers as text"
    assert made.output_type is str
    stream.disable_chaining().set_buffer_timeout(-1)
    assert node(flow, "text").chaining is ChainingStrategy.NEVER
    assert node(flow, "text").buffer_timeout_ms == -1
    stream.set_buffer_timeout("20ms")
    assert node(flow, "text").buffer_timeout_ms == 20


def test_sinks_take_settings(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    numbers.sink(DiscardSink()).name("away").uid("away-1").set_parallelism(2).disable_chaining()
    made = node(flow, "away")
    assert (made.uid, made.parallelism, made.chaining) == ("away-1", 2, ChainingStrategy.NEVER)


@pytest.mark.parametrize(
    ("partition", "name"),
    [
        (lambda s: s.forward(), "forward"),
        (lambda s: s.rebalance(), "rebalance"),
        (lambda s: s.rescale(), "rescale"),
        (lambda s: s.shuffle(), "shuffle"),
        (lambda s: s.broadcast(), "broadcast"),
        (lambda s: s.global_(), "global"),
        (lambda s: s.key_by(lambda n: n), "hash"),
        (lambda s: s.partition_custom(lambda key, count: key % count, lambda n: n), "custom"),
    ],
)
def test_the_eight_partitioners(
    flow: sw.Pipeline,
    numbers: sw.DataStream[int],
    partition: Callable[[sw.DataStream[int]], sw.DataStream[int]],
    name: str,
) -> None:
    partition(numbers).map(str).name("after").print()
    assert [e[1] for e in edges(flow) if e[2] == "after"] == [name]


@pytest.mark.parametrize(
    ("partition", "word"),
    [
        (lambda s: s.forward(), "forward()"),
        (lambda s: s.rebalance(), "rebalance()"),
        (lambda s: s.rescale(), "rescale()"),
        (lambda s: s.shuffle(), "shuffle()"),
        (lambda s: s.broadcast(), "broadcast()"),
        (lambda s: s.broadcast(sw.state.MapStateDescriptor("rules")), "broadcast()"),
        (lambda s: s.global_(), "global_()"),
        (lambda s: s.partition_custom(lambda key, count: 0, lambda n: n), "partition_custom()"),
    ],
)
def test_what_would_undo_key_by_is_refused(
    numbers: sw.DataStream[int], partition: Callable[[sw.DataStream[int]], object], word: str
) -> None:
    keyed = numbers.key_by(lambda n: n)
    for stream in (keyed, keyed.union(keyed), numbers.union(keyed)):
        with pytest.raises(GraphError, match=rf"^{re.escape(word)} at .*test_streams.*call key_by\(\) after it"):
            partition(stream)
    partition(keyed.map(str))


@pytest.mark.parametrize(
    "step",
    [lambda s: s.filter(bool), lambda s: s.map(str), lambda s: s.union(s), lambda s: s.process(Keyed())],
)
def test_a_step_ends_a_keyed_stream(
    numbers: sw.DataStream[int], step: Callable[[sw.DataStream[int]], sw.DataStream[int]]
) -> None:
    with pytest.raises(AttributeError, match=r"works per key, so call key_by\(\.\.\.\) first"):
        step(numbers.key_by(lambda n: n)).reduce(max)  # type: ignore[attr-defined]


def test_a_partitioned_union_partitions_every_input(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    other = flow.from_collection([4])
    numbers.rebalance().union(other.shuffle()).map(str).name("kept").print()
    numbers.union(other).broadcast().map(str).name("set").print()
    assert [e[1] for e in edges(flow) if e[2] == "kept"] == ["rebalance", "shuffle"]
    assert [e[1] for e in edges(flow) if e[2] == "set"] == ["broadcast", "broadcast"]


def test_keyed_steps_know_their_key(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    def parity(n: int) -> int:
        return n % 2

    numbers.key_by(parity).reduce(max).name("max").print()
    step = node(flow, "max").step
    assert isinstance(step, KeyedReduceStep)
    assert step.key is parity


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda k: k.count(), "count"),
        (lambda k: k.sum(), "sum"),
        (lambda k: k.sum(1), "sum(1)"),
        (lambda k: k.min("price"), "min(price)"),
        (lambda k: k.max(lambda n: n), "max"),
        (lambda k: k.min_by("price"), "min_by(price)"),
        (lambda k: k.max_by(lambda n: n), "max_by"),
    ],
)
def test_aggregations_have_names_that_people_understand(
    flow: sw.Pipeline, numbers: sw.DataStream[int], make: Callable[[Any], Any], name: str
) -> None:
    make(numbers.key_by(lambda n: n)).print()
    assert name in [n.name for n in flow.graph().nodes]


def test_side_outputs_are_edges_with_a_tag(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    late = sw.OutputTag[int]("late")
    main = numbers.process(lambda n, ctx: [n])
    main.print()
    main.get_side_output(late).print()
    assert [e.tag for e in flow.graph().edges] == [None, None, late]


def test_a_loop_is_a_feedback_edge(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    loop = numbers.iterate()
    less = loop.map(lambda n: n - 1).name("less")
    assert loop.close_with(less.filter(lambda n: n > 0)) is not loop
    less.print()
    assert [e.feedback for e in flow.graph().edges].count(True) == 1


# ---- locations ------------------------------------------------------------------------------------------------


def test_a_step_knows_where_it_was_written(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    numbers.map(str).name("text").print()
    file, line = node(flow, "text").location.rsplit(":", 1)
    source = Path(__file__).read_text().splitlines()
    assert Path(file).name == "test_streams.py"
    assert source[int(line) - 1].strip() == 'numbers.map(str).name("text").print()'


def test_a_location_below_the_working_directory_is_relative(
    flow: sw.Pipeline, numbers: sw.DataStream[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    numbers.map(str).name("text").print()
    assert node(flow, "text").location.startswith("test_streams.py:")


# ---- refusals -------------------------------------------------------------------------------------------------

HERE = r"at \S*test_streams\.py:\d+"


async def later(value: int) -> int:
    return value


class Later:
    async def __call__(self, value: int) -> int:
        return value


def one_by_one(value: int) -> Iterator[bool]:
    yield value > 1


class Collecting(sw.KeyedProcessFunction[int, int, int]):
    """Flink's methods, as they are in Java."""

    def process_element(self, value: int, ctx: Any, out: Any) -> None: ...  # type: ignore[override]


class TimersCollected(Keyed):
    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None: ...  # type: ignore[override]


class JavaTimer(Keyed):
    def onTimer(self, timestamp: int, ctx: Any) -> None: ...


class OpensAlone(Twice):
    def open(self) -> None: ...  # type: ignore[override]


class WindowCollected(sw.ProcessWindowFunction[int, int, int]):
    def process(self, key: int, context: Any, elements: Any, out: Any) -> None: ...  # type: ignore[override]


class Answering(sw.AsyncFunction[int, int]):
    async def async_invoke(self, value: int, result_future: Any) -> None: ...  # type: ignore[override]


NO_COLLECTOR = r"cannot be called so\. There is no collector: yield the results, or return a list of them$"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: s.key_by(abs).process(Collecting()),
            rf"process\(\) {HERE} calls Collecting\.process_element\(value, ctx\), but .* {NO_COLLECTOR}",
        ),
        (
            lambda s: s.key_by(abs).process(TimersCollected()),
            rf"process\(\) {HERE} calls TimersCollected\.on_timer\(timestamp, ctx\), but .* {NO_COLLECTOR}",
        ),
        (
            lambda s: s.key_by(abs).process(JavaTimer()),
            rf"process\(\) {HERE}: JavaTimer\.onTimer is never called; the method is called on_timer$",
        ),
        (
            lambda s: s.map(OpensAlone()),
            rf"map\(\) {HERE} calls OpensAlone\.open\(context\), but .*\.open\(\).* cannot be called so$",
        ),
        (
            lambda s: s.key_by(abs).count_window(2).process(WindowCollected()),
            rf"process\(\) {HERE} calls WindowCollected\.process\(key, ctx, elements\), but .* {NO_COLLECTOR}",
        ),
        (
            lambda s: s.async_map(Answering(), timeout="1s"),
            rf"async_map\(\) {HERE} calls Answering\.async_invoke\(value\), but .* {NO_COLLECTOR}",
        ),
    ],
)
def test_a_function_object_s_methods_are_checked_before_the_job_runs(
    numbers: sw.DataStream[int], call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(numbers)


def with_two(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*before: Any) -> Any:
        return function(*before, 2)

    return called


def one_with_two(function: Callable[..., Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def called(value: Any) -> Any:
        return function(value, 2)

    return called


class Times(sw.MapFunction[int, int]):
    @with_two
    def map(self, value: int, by: int) -> int:  # type: ignore[override]
        return value * by


def test_a_decorator_may_add_arguments(numbers: sw.DataStream[int]) -> None:
    numbers.map(Times())
    numbers.map(with_two(lambda value, by: value * by))
    numbers.map(one_with_two(lambda value, by: value * by))
    strategy: sw.WatermarkStrategy[Any] = sw.WatermarkStrategy.no_watermarks()
    numbers.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(one_with_two(lambda value, by: value * by))
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.map(3), rf"map\(\) {HERE} takes a callable or a MapFunction, not 3 \(int\)"),
        (lambda s: s.map(Twice), rf"map\(\) {HERE} was given the class Twice; give it an object: Twice\(\.\.\.\)"),
        (
            lambda s: s.process(Keyed()),
            rf"process\(\) {HERE} .*; Keyed is a KeyedProcessFunction, for key_by\(\.\.\.\)\.process\(\)$",
        ),
        (lambda s: s.map(Odd()), rf"map\(\) {HERE} takes a callable or a MapFunction; Odd is a FilterFunction"),
        (lambda s: s.map(later), rf"map\(\) {HERE} was given the async function later; it takes a plain function"),
        (
            lambda s: s.map(Later()),
            rf"map\(\) {HERE} was given the async function Later; it takes a plain function",
        ),
        (lambda s: s.filter(one_by_one), rf"filter\(\) {HERE} was given the generator function one_by_one, whose"),
        (
            lambda s: s.map(lambda a, b: a),
            rf"map\(\) {HERE} calls its function with 1 argument, but .*<lambda>\(a, b\) cannot be called so",
        ),
        (
            lambda s: s.process(lambda value: [value]),
            rf"process\(\) {HERE} calls its function with 2 arguments, but .*<lambda>\(value\) cannot",
        ),
        (
            lambda s: s.filter(None),
            rf"filter\(\) {HERE} takes a callable or a FilterFunction, not None \(NoneType\)",
        ),
        (
            lambda s: s.flat_map([1]),
            rf"flat_map\(\) {HERE} takes a callable or a FlatMapFunction, not \[1\] \(list\)",
        ),
        (lambda s: s.for_each("x"), rf"for_each\(\) {HERE} takes a callable.*, not 'x' \(str\)"),
        (
            lambda s: s.key_by("user"),
            rf"key_by\('user'\) {HERE} takes a callable: key_by\(lambda record: record\['user'\]\)",
        ),
        (
            lambda s: s.key_by(lambda n: n).aggregate(len),
            rf"aggregate\(\) {HERE} takes an AggregateFunction, not <built-in function len>",
        ),
        (
            lambda s: s.key_by(lambda n: n).sum(1.5),
            rf"sum\(\) {HERE} takes an index, the name of a key or attribute, or a callable, not 1\.5 \(float\)",
        ),
        (lambda s: s.union(), r"union\(\) takes at least one other stream"),
        (lambda s: s.union([1]), rf"union\(\) {HERE} takes streams, not \[1\] \(list\)"),
        (lambda s: s.sink(3), rf"sink\(\) {HERE} takes a sink object or the name of a connector"),
        (lambda s: s.sink(DiscardSink), rf"sink\(\) {HERE} was given the class DiscardSink"),
        (lambda s: s.sink(DiscardSink(), a=1), rf"sink\(\) {HERE}: a cannot be given together with a sink object"),
        (lambda s: s.sink(CollectionSource([])), rf"sink\(\) {HERE}: CollectionSource is a source, not a sink"),
        (lambda s: s.get_side_output("late"), r"get_side_output\(\) takes an OutputTag"),
        (lambda s: s.get_side_output(sw.OutputTag(3)), "the name of an OutputTag is a str, not 3"),
        (lambda s: s.set_parallelism("2"), rf"set_parallelism\(\) {HERE} takes an int, not '2' \(str\)"),
        (lambda s: s.set_parallelism(True), rf"set_parallelism\(\) {HERE} takes an int, not True \(bool\)"),
        (lambda s: s.uid(7), rf"uid\(\) {HERE} takes a str, not 7 \(int\)"),
        (lambda s: s.set_buffer_timeout(0.5), rf"set_buffer_timeout\(\) {HERE} takes a timedelta or an int"),
        (lambda s: s.partition_custom(lambda k, n: 0), rf"partition_custom\(partitioner, key\) {HERE} needs key"),
    ],
)
def test_a_wrong_argument_is_a_type_error(
    numbers: sw.DataStream[int], call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(numbers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.set_parallelism(0), rf"set_parallelism\(\) {HERE} must be at least 1, not 0"),
        (
            lambda s: s.set_max_parallelism(40_000),
            rf"set_max_parallelism\(\) {HERE} must be from 1 to 32768, not 40000",
        ),
        (lambda s: s.name(" "), rf"name\(\) {HERE} must not be empty"),
        (lambda s: s.uid("a\ud800"), rf"uid\(\) {HERE}: 'a\\ud800' has characters that UTF-8 does not have"),
        (lambda s: s.set_buffer_timeout(-2), rf"set_buffer_timeout\(\) {HERE}: -2 is not .*; -1 is for no limit"),
        (lambda s: s.set_buffer_timeout(timedelta(seconds=-1)), rf"set_buffer_timeout\(\) {HERE}"),
    ],
)
def test_a_value_out_of_range_is_a_value_error(
    numbers: sw.DataStream[int], call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(numbers)


@pytest.mark.parametrize(
    "word", ["reduce", "sum", "min", "max", "min_by", "max_by", "count", "aggregate", "window"]
)
def test_keyed_methods_ask_for_a_key(numbers: sw.DataStream[int], word: str) -> None:
    message = rf"DataStream has no {word}\(\): it works per key, so call key_by\(\.\.\.\) first"
    with pytest.raises(AttributeError, match=message):
        getattr(numbers, word)
    getattr(numbers.key_by(lambda n: n), word)


def test_what_is_not_built_says_so(numbers: sw.DataStream[int]) -> None:
    for stream in (numbers, numbers.key_by(lambda n: n)):
        with pytest.raises(AttributeError, match=r"Stream has no cache; caching a stream is not built"):
            stream.cache  # type: ignore[attr-defined]  # noqa: B018


def test_other_names_are_pointed_to_the_right_one(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    with pytest.raises(AttributeError, match=re.escape("DataStream has no add_sink; use sink(sink)")):
        numbers.add_sink  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(
        AttributeError, match=re.escape("DataStream has no attribute 'flatmap'. Did you mean 'flat_map'?")
    ):
        numbers.flatmap  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=re.escape("Pipeline has no execute; use run()")):
        flow.execute  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=re.escape("Pipeline has no map(): begin with a source")):
        flow.map  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(
        AttributeError, match=re.escape("DataStreamSink has no map(): a sink is the end of a stream")
    ):
        numbers.print().map  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=re.escape("use run(checkpoint_interval=...)")):
        flow.enable_checkpointing  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(numbers, "__array__")


@pytest.mark.parametrize(
    ("make", "said_by"),
    [
        (lambda s: s.rebalance(), r"rebalance\(\)"),
        (lambda s: s.global_(), r"global_\(\)"),
        (lambda s: s.key_by(lambda n: n), r"key_by\(\)"),
        (lambda s: s.union(s), r"union\(\)"),
        (lambda s: s.process(lambda n, ctx: None).get_side_output(sw.OutputTag("t")), r"get_side_output\(\)"),
    ],
)
def test_what_is_no_step_has_no_settings(
    numbers: sw.DataStream[int], make: Callable[[Any], Any], said_by: str
) -> None:
    with pytest.raises(sw.GraphError, match=rf"uid\(\) {HERE}: {said_by} is no step of its own"):
        make(numbers).uid("x")


def test_side_outputs_come_from_process_only(numbers: sw.DataStream[int]) -> None:
    with pytest.raises(
        sw.GraphError, match=r"get_side_output\('late'\).*'map' .*has no side outputs; only process"
    ):
        numbers.map(str).get_side_output(sw.OutputTag("late"))
    with pytest.raises(sw.GraphError, match=r"'branch' .*has no side outputs; only process"):
        numbers.branch(bool)[0].get_side_output(sw.OutputTag("late"))


def test_one_side_output_has_one_type(numbers: sw.DataStream[int]) -> None:
    main: sw.DataStream[int] = numbers.process(lambda n, ctx: None)
    main.get_side_output(sw.OutputTag("late", int))
    main.get_side_output(sw.OutputTag("late", int))
    with pytest.raises(sw.GraphError, match=r"before with type <class 'int'>, now with <class 'str'>"):
        main.get_side_output(sw.OutputTag("late", str))


def test_a_side_output_may_be_taken_twice_with_tags_of_equal_types(numbers: sw.DataStream[int]) -> None:
    main: sw.DataStream[int] = numbers.process(lambda n, ctx: None)
    for _ in range(2):
        main.get_side_output(sw.OutputTag("late", tuple[str, int]))
    assert len(main._inputs[0].upstream.side_output_tags) == 1


def test_a_side_output_to_which_nothing_can_come_is_refused(numbers: sw.DataStream[int]) -> None:
    late, other = sw.OutputTag[int]("late"), sw.OutputTag[int]("other")
    keyed = numbers.key_by(abs)
    windowed = keyed.window(sw.windows.TumblingEventTimeWindows.of(10))
    near = keyed.interval_join(keyed).between(0, 1)
    as_of = keyed.asof_join(keyed)

    def pair(one: int, two: int) -> int:
        return one

    for without, with_late in [
        (windowed.count(), windowed.side_output_late_data(late).count()),
        (windowed.apply(lambda k, w, e: e), windowed.side_output_late_data(late).apply(lambda k, w, e: e)),
        (near.apply(pair), near.side_output_right_late_data(late).apply(pair)),
        (as_of.apply(pair), as_of.side_output_left_late_data(late).apply(pair)),
    ]:
        with pytest.raises(
            sw.GraphError, match=r"nothing is ever emitted there, as .* has none: name the one for late"
        ):
            without.get_side_output(late)
        with_late.get_side_output(late)
        with pytest.raises(sw.GraphError, match=r"get_side_output\('other'\) at .* has only 'late': name"):
            with_late.get_side_output(other)
    near.process(lambda one, two, ctx: None).get_side_output(other)


def test_streams_of_two_pipelines_do_not_mix(numbers: sw.DataStream[int]) -> None:
    other = sw.Pipeline("other").from_collection([1])
    with pytest.raises(sw.GraphError, match="one stream belongs to pipeline 'test', the other to 'other'"):
        numbers.union(other)
    with pytest.raises(sw.GraphError, match="one stream belongs to pipeline 'test', the other to 'other'"):
        numbers.iterate().close_with(other)


def test_only_what_came_out_of_a_loop_goes_back(numbers: sw.DataStream[int]) -> None:
    loop = numbers.iterate()
    with pytest.raises(sw.GraphError, match="does not come from 'iterate'"):
        loop.close_with(numbers.map(Twice()))
    with pytest.raises(sw.GraphError, match="would go round for ever"):
        loop.close_with(loop)


def test_a_loop_that_is_not_closed_is_refused(flow: sw.Pipeline, numbers: sw.DataStream[int]) -> None:
    numbers.iterate().print()
    with pytest.raises(sw.GraphError, match="close_with"):
        flow.graph()


def test_streams_show_what_they_are(numbers: sw.DataStream[int]) -> None:
    shown = repr(numbers.map(str).name("text").rebalance())
    assert re.fullmatch(r"<DataStream of rebalance\(\) from 'text' \(\S+test_streams\.py:\d+\)>", shown)
    assert re.match(r"<DataStreamSink 'sink' ", repr(numbers.print()))


def test_every_callable_of_a_fitting_shape_is_taken(numbers: sw.DataStream[int]) -> None:
    class Callable_:
        def __call__(self, value: int, extra: int = 0) -> int:
            return value

    def star(*values: int) -> int:
        return values[0]

    def make(value: int) -> Iterable[int]:
        yield value

    numbers.map(Callable_()).map(star).flat_map(make).map(float).map("{}".format).map(complex)
