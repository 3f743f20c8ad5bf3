"""Pipelines: their sources, settings, runs, and what they show of themselves."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.config.settings import Settings, resolve
from sluiceway.connector import Connector, Sink, Source
from sluiceway.connector.lib import CollectionSource, DiscardSink
from sluiceway.elements import Batch
from sluiceway.errors import CheckpointError
from sluiceway.hooks import Offer, hookimpl
from sluiceway.monitoring.diagnosis import Diagnosis
from sluiceway.partitioner import Partitioner
from sluiceway.plugins import PluginManager


class Numbers(CollectionSource[int]):
    """A source as a plugin may offer it."""

    def __init__(self, first: int, last: int, step: int = 1) -> None:
        super().__init__(range(first, last + 1, step))


class Reversed(Partitioner):
    name = "reversed"

    def partition(self, batch: Batch[Any]) -> list[tuple[int, Batch[Any]]]:
        return [(self.consumers - 1, batch)]


def _nothing() -> Any:
    return None


class Plugin:
    @hookimpl
    def sluiceway_connectors(self) -> list[Offer]:
        return [
            Offer("numbers", lambda: Connector(source=Numbers)),
            Offer("away", lambda: Connector(sink=DiscardSink)),
            Offer("odd", lambda: Connector(source=_nothing, sink=_nothing)),
            Offer("gone", lambda: Connector(source=Numbers), requires=("no_such_module",), extra="gone"),
        ]

    @hookimpl
    def sluiceway_partitioners(self) -> list[Offer]:
        return [Offer("reversed", lambda: Reversed)]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    manager = PluginManager()
    manager.register(Plugin(), "test")
    monkeypatch.setattr("sluiceway.plugins.manager._default", manager)
    return manager


@pytest.fixture
def flow() -> sw.Pipeline:
    return sw.Pipeline("test")


# ---- construction -----------------------------------------------------------------------------------------


def test_what_the_pipeline_says_goes_before_the_options() -> None:
    flow = sw.Pipeline("own", parallelism=3, max_parallelism=12, buffer_timeout=timedelta(milliseconds=7))
    flow.from_collection([1]).map(str).disable_chaining().print()
    graph = flow.graph(Settings(parallelism=5, max_parallelism=64, buffer_timeout_ms=1))
    assert graph.job_name == "own"
    assert {(n.parallelism, n.max_parallelism, n.buffer_timeout_ms) for n in graph.nodes} == {(3, 12, 7)}


def test_options_fill_what_the_pipeline_does_not_say(flow: sw.Pipeline) -> None:
    flow.from_collection([1]).print()
    graph = flow.graph(Settings(parallelism=5, max_parallelism=64, buffer_timeout_ms=1))
    assert {(n.parallelism, n.max_parallelism, n.buffer_timeout_ms) for n in graph.nodes} == {(5, 64, 1)}


@pytest.mark.parametrize(
    ("own", "option", "chained"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_chaining_needs_both(own: bool, option: bool, chained: bool) -> None:
    flow = sw.Pipeline(chaining=own)
    flow.from_collection([1]).print()
    assert flow.graph(Settings(chaining=option)).chaining is chained


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": ""}, ValueError, r"Pipeline\(name\).* must not be empty"),
        (
            {"name": "a\ud800"},
            ValueError,
            r"Pipeline\(name\).*'a\\ud800' has characters that UTF-8 does not",
        ),
        ({"name": 3}, TypeError, r"Pipeline\(name\).* takes a str, not 3"),
        ({"parallelism": 0}, ValueError, r"Pipeline\(parallelism=\).* must be at least 1, not 0"),
        ({"max_parallelism": 32769}, ValueError, r"Pipeline\(max_parallelism=\).* from 1 to 32768, not 32769"),
        ({"buffer_timeout": "soon"}, ValueError, r"Pipeline\(buffer_timeout=\).*'soon' is not a duration"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sw.Pipeline(**arguments)


# ---- sources and sinks ------------------------------------------------------------------------------------


def make_numbers() -> Iterator[int]:
    yield from (1, 2, 3)


def test_sources(flow: sw.Pipeline) -> None:
    collected: list[sw.Collected[Any]] = [
        flow.from_collection((1, 2)).collect(),
        flow.from_function(make_numbers).collect(),
        flow.from_sequence(3, 5).collect(),
        flow.generate(count=2).collect(),
        flow.generate(lambda n: -n, count=3).collect(),
        flow.source(CollectionSource(["a"])).collect(),
    ]
    flow.run()
    assert [list(c) for c in collected] == [[1, 2], [1, 2, 3], [3, 4, 5], [0, 1], [0, -1, -2], ["a"]]


def test_options_of_connectors_are_given_by_name(flow: sw.Pipeline, plugins: PluginManager) -> None:
    # Untyped, as in programs of users without a type checker.
    pipeline: Any = flow
    with pytest.raises(
        TypeError, match=r"source 'numbers': options are given by name, not by position\. Its options: first, last"
    ):
        pipeline.source("numbers", 1, 9)
    stream = pipeline.source("numbers", first=1, last=9)
    with pytest.raises(
        TypeError, match=r"^sink\(\) at .*: sink 'away': options are given by name, not by position\."
    ):
        stream.sink("away", "there")
    with pytest.raises(
        TypeError, match=r"takes nothing but a sink object; options are given to DiscardSink\(\.\.\.\)"
    ):
        stream.sink(DiscardSink(), "there")


def test_connectors_by_name(flow: sw.Pipeline, plugins: PluginManager) -> None:
    stream = flow.source("numbers", first=1, last=9, step=4)
    collected = stream.collect()
    stream.sink("away")
    flow.run()
    assert collected == [1, 5, 9]


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("nunbers", {}, sw.UnknownNameError, r"there is no connector 'nunbers'\. Did you mean 'numbers'\?"),
        (
            "numbers",
            {"frist": 1, "last": 2},
            TypeError,
            r"source 'numbers': there is no option 'frist'\. Did you mean 'first'\? Its options: first",
        ),
        (
            "numbers",
            {"first": 1},
            TypeError,
            r"source 'numbers': missing a required argument: 'last'\. Its options: first",
        ),
        ("away", {}, sw.ConfigurationError, r"connector 'away' has no source, only a sink"),
        ("odd", {}, sw.PluginError, r"connector 'odd' made None \(NoneType\); it must make a Source"),
        ("gone", {}, sw.MissingExtraError, r"connector 'gone' needs no_such_module: pip install gone"),
        (
            3,
            {},
            TypeError,
            r"takes a source object or the name of a connector, as in source\(\"socket\", \.\.\.\), not 3",
        ),
        (
            type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})(),
            {},
            TypeError,
            r"not .*DataFrame.*\. sluiceway_spark has SparkSource\.dataframe\(df\), .* transform\(df, build\)",
        ),
        (Numbers, {}, TypeError, r"was given the class Numbers; give it an object: Numbers\(\.\.\.\)"),
        (DiscardSink(), {}, TypeError, r"DiscardSink is a sink, not a source"),
        (
            Numbers(1, 2),
            {"step": 3},
            TypeError,
            r"step cannot be given together with a source object; give it to Numbers\(\.\.\.\)",
        ),
    ],
)
def test_sources_that_cannot_be(
    flow: sw.Pipeline,
    plugins: PluginManager,
    name: Any,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message) as caught:
        flow.source(name, **options)
    if not isinstance(caught.value, sw.UnknownNameError | sw.MissingExtraError):
        assert "test_pipeline.py:" in str(caught.value)
    assert "0 steps" in repr(flow)


def test_a_connector_without_a_sink(flow: sw.Pipeline, plugins: PluginManager) -> None:
    with pytest.raises(sw.ConfigurationError, match="connector 'numbers' has no sink, only a source"):
        flow.from_collection([1]).sink("numbers")


def test_partitioners_by_name(flow: sw.Pipeline, plugins: PluginManager) -> None:
    stream = flow.from_collection([1, 2])
    seen = stream.partition_custom("reversed").map(where()).set_parallelism(3).collect()
    flow.run()
    assert seen == [2, 2]
    with pytest.raises(sw.UnknownNameError, match=r"there is no partitioner 'reverse'\. Did you mean 'reversed'"):
        stream.partition_custom("reverse")
    with pytest.raises(sw.ConfigurationError, match=r"that one is built in; write rebalance\(\)"):
        stream.partition_custom("rebalance")


def where() -> sw.MapFunction[Any, int]:
    class Where(sw.MapFunction[Any, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.index = context.index_of_this_subtask

        def map(self, value: Any) -> int:
            return self.index

    return Where()


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (lambda s: s.broadcast(), [0, 0, 1, 1]),
        (lambda s: s.global_(), [0, 0]),
        (lambda s: s.partition_custom(lambda key, count: key % count, lambda n: n), [0, 1]),
        (lambda s: s.partition_custom(lambda key, count: 1, lambda n: n), [1, 1]),
    ],
)
def test_records_go_where_the_partitioner_says(flow: sw.Pipeline, partition: Any, expected: list[int]) -> None:
    seen = partition(flow.from_collection([1, 2])).map(where()).set_parallelism(2).collect()
    flow.run()
    assert sorted(seen) == expected


# ---- the rest of the language, run ------------------------------------------------------------------------


def test_unions_side_outputs_and_loops_together(flow: sw.Pipeline) -> None:
    small = sw.OutputTag[int]("small")

    def split(n: int, ctx: sw.ProcessFunction.Context) -> Iterable[int]:
        if n < 10:
            ctx.output(small, n)
        else:
            yield n

    both = flow.from_sequence(8, 9).union(flow.from_sequence(20, 21))
    loop = both.iterate()
    halves = loop.process(split)
    loop.close_with(halves.map(lambda n: n // 2))
    collected = halves.get_side_output(small).collect()
    flow.run()
    assert sorted(collected) == [5, 5, 8, 9]


def test_keyed_state_by_a_function_object(flow: sw.Pipeline) -> None:
    class Rank(sw.KeyedProcessFunction[str, int, tuple[str, int]]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.seen = context.get_state(sw.ValueStateDescriptor("seen", int, default=0))

        def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
            self.seen.update(self.seen.value() + 1)
            yield ctx.get_current_key(), self.seen.value()

    keyed = flow.from_collection([1, 2, 3]).key_by(lambda n: "odd" if n % 2 else "even")
    ranks = keyed.process(Rank()).collect()
    flow.run()
    assert ranks == [("odd", 1), ("even", 1), ("odd", 2)]


def test_a_process_function_may_stand_behind_key_by(flow: sw.Pipeline) -> None:
    class Keys(sw.ProcessFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

        def process_element(self, value: int, ctx: sw.ProcessFunction.Context) -> list[int]:
            self.count.update(self.count.value() + 1)
            return [self.count.value()]

    counts = flow.from_collection([1, 2, 3]).key_by(lambda n: n % 2).process(Keys()).collect()
    flow.run()
    assert counts == [1, 1, 2]


def test_for_each_calls_back(flow: sw.Pipeline) -> None:
    seen: list[int] = []
    flow.from_collection([1, 2]).for_each(seen.append)
    flow.run()
    assert seen == [1, 2]


def test_print_prints(flow: sw.Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    flow.from_collection([1, 2]).print("n")
    flow.run()
    assert capsys.readouterr().out == "n> 1\nn> 2\n"


# ---- runs -------------------------------------------------------------------------------------------------


def test_a_pipeline_runs_again_and_its_results_begin_anew(flow: sw.Pipeline) -> None:
    numbers = flow.from_collection([1, 2]).map(lambda n: n + 1).collect()
    assert flow.run().status is sw.JobStatus.FINISHED
    assert flow.run().status is sw.JobStatus.FINISHED
    assert numbers == [2, 3]


def test_a_pipeline_that_cannot_run_leaves_the_last_results_alone(flow: sw.Pipeline) -> None:
    numbers = flow.from_collection([1, 2]).collect()
    flow.run()
    flow.from_collection([3])
    with pytest.raises(sw.GraphError, match="leads to no sink"):
        flow.run()
    assert numbers == [1, 2]


def test_options_of_a_run(flow: sw.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = flow.from_collection(range(10)).map(where()).collect()
    flow.run(parallelism=2)
    assert set(indices) == {0, 1}
    monkeypatch.setenv("SLUICEWAY_PARALLELISM", "3")
    flow.run()
    assert set(indices) == {0, 1, 2}
    with pytest.raises(sw.UnknownNameError, match=r"there is no option 'paralelism'\. Did you mean 'parallelism'"):
        flow.run(paralelism=2)
    with pytest.raises(sw.UnknownNameError, match=r"there is no engine 'lokal'\. Did you mean 'local'"):
        flow.run(engine="lokal")


def test_a_users_exception_comes_out_as_it_is(flow: sw.Pipeline) -> None:
    flow.from_collection([1, 0]).map(lambda n: 1 // n).name("inverse").collect()
    with pytest.raises(ZeroDivisionError) as caught:
        flow.run()
    assert any("inverse" in note for note in caught.value.__notes__)


def test_a_run_in_another_thread(flow: sw.Pipeline) -> None:
    numbers = flow.from_collection([1, 2]).collect()
    thread = threading.Thread(target=flow.run)
    thread.start()
    thread.join()
    assert numbers == [1, 2]


def test_ctrl_c_cancels_a_run_and_the_program_does_not_go_on() -> None:
    program = (
        "import sluiceway as sw\n"
        "flow = sw.Pipeline('test')\n"
        "flow.generate(rate=1000).filter(lambda n: n == 0).print('first')\n"
        "flow.run()\n"
        "print('went on')\n"
    )
    command = [sys.executable, "-u", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first> 0\n"
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=PATIENT_S)
    assert (rest, process.returncode) == ("", -signal.SIGINT)
    assert told.startswith("cancelling; Ctrl-C again ends at once\nTraceback ")
    assert told.endswith("KeyboardInterrupt: job 'test' was cancelled\n")


# ---- start ------------------------------------------------------------------------------------------------


def test_start_and_result(flow: sw.Pipeline) -> None:
    numbers = flow.from_collection([1, 2]).collect()

    async def main() -> None:
        handle = await flow.start()
        result = await handle.result()
        assert result is await handle.result()
        assert result.status is handle.status is sw.JobStatus.FINISHED
        assert handle.metrics().records_in == 2

    asyncio.run(main())
    assert numbers == [1, 2]


def test_start_and_cancel(flow: sw.Pipeline) -> None:
    arrived = threading.Event()
    flow.generate(rate=1000).for_each(lambda n: arrived.set())

    async def main() -> None:
        handle = await flow.start()
        await asyncio.to_thread(arrived.wait)
        assert handle.status is sw.JobStatus.RUNNING
        with pytest.raises(TimeoutError):  # giving up waiting does not stop the job
            await asyncio.wait_for(handle.result(), 0.01)
        assert handle.status is sw.JobStatus.RUNNING
        handle.cancel()
        assert (await handle.result()).status is sw.JobStatus.CANCELED

    asyncio.run(main())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_job_that_cannot_begin_has_failed_and_answers(
    flow: sw.Pipeline, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("no room for a directory")

    begins = ["runtime.local.engine.LocalJob.begin", "runtime.cluster.cluster_job.make_directory"][workers]
    monkeypatch.setattr(f"sluiceway.{begins}", fail)
    flow.generate(rate=1000).sink(DiscardSink())

    async def main() -> None:
        handle = await flow.start(workers=workers, checkpoint_interval="1h")
        with pytest.raises(CheckpointError, match="the job has ended"):
            await handle.checkpoint()
        with pytest.raises(OSError, match="no room for a directory"):
            await handle.stop()
        assert handle.status is sw.JobStatus.FAILED

    asyncio.run(main())


class Counted(sw.KeyedProcessFunction[int, int, int]):
    """Counts the records of a key; holds what can neither be copied nor pickled once it is open."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.lock = threading.Lock()
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> Iterator[int]:
        with self.lock:
            self.count.update(self.count.value() + 1)
        yield self.count.value()


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_pipeline_that_has_run_runs_again_in_other_ways(flow: sw.Pipeline, backend: str) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    counts = flow.from_collection(range(6)).key_by(lambda n: n % 3).process(Counted()).collect()
    for options in ({}, {}, {"parallelism": 2}, {"checkpoint_interval": "1h"}, {"workers": 1}):
        assert [f.code for f in flow.check(workers=1) if f.code == "unserialisable"] == []
        flow.run(state_backend=backend, **options)  # type: ignore[arg-type]
        assert sorted(counts) == [1, 1, 1, 2, 2, 2], options


def test_jobs_that_run_at_once_have_function_objects_of_their_own(flow: sw.Pipeline) -> None:
    counts = flow.generate().key_by(lambda n: 0).process(Counted())
    with counts.execute_and_collect() as first:
        assert next(first) == 1  # so that it is open
        with counts.execute_and_collect() as second:
            assert list(islice(second, 20_000)) == list(range(1, 20_001))
            assert list(islice(first, 20_000)) == list(range(2, 20_002))


def test_a_pipeline_with_one_list_of_results_does_not_run_twice_at_once(flow: sw.Pipeline) -> None:
    flow.generate(rate=1000).collect()

    async def main() -> None:
        async with await flow.start():
            with pytest.raises(sw.GraphError, match=r"pipeline 'test' is running, and collect\(\) has one list"):
                flow.run()
        async with await flow.start():
            pass

    asyncio.run(main())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_job_that_is_stopped_before_it_has_begun_ends(flow: sw.Pipeline, workers: int) -> None:
    flow.generate(rate=1000).sink(DiscardSink())
    job = flow.prepare(resolve({"workers": workers}).settings)
    job.stop()
    assert job.run().status is sw.JobStatus.FINISHED
    job.stop()  # nothing to stop any more


def test_a_handle_names_what_limits_its_job(flow: sw.Pipeline) -> None:
    flow.generate().rebalance().for_each(lambda n: sum(range(20_000))).uid("slow")

    async def go() -> tuple[Diagnosis, Diagnosis]:
        async with await flow.start() as handle:
            while not handle.metrics().records_in:  # polls
                await asyncio.sleep(0.01)
            return await handle.diagnose(over="200ms"), await _after_its_end(handle)

    async def _after_its_end(handle: sw.JobHandle) -> Diagnosis:
        handle.cancel()
        await handle.result()
        return await handle.diagnose(over="1h")

    running, ended = asyncio.run(go())
    assert not running.healthy
    assert "CallbackSink" in running.summary
    assert "ended" in ended.summary or "cancel" in ended.summary


def test_a_diagnosis_over_no_time_is_refused(flow: sw.Pipeline) -> None:
    async def go() -> None:
        flow.from_collection([1]).print()
        handle = await flow.start()
        await handle.diagnose(over=0)

    with pytest.raises(sw.ConfigurationError, match="must be longer than 0 ms"):
        asyncio.run(go())


def test_a_handle_as_a_context_cancels_at_its_end(flow: sw.Pipeline) -> None:
    flow.generate(rate=1000).sink(DiscardSink())

    async def main() -> sw.JobHandle:
        async with await flow.start() as handle:
            pass
        return handle

    assert asyncio.run(main()).status is sw.JobStatus.CANCELED


def test_what_makes_a_started_job_fail_is_raised_by_its_result(flow: sw.Pipeline) -> None:
    flow.from_collection([0]).map(lambda n: 1 // n).collect()

    async def result() -> None:
        await (await flow.start()).result()

    async def context() -> None:
        async with await flow.start() as handle:
            await asyncio.wait([asyncio.ensure_future(handle.result())])

    for main in (result, context):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(main())


def test_a_pipeline_that_cannot_be_is_refused_by_start_itself(flow: sw.Pipeline) -> None:
    with pytest.raises(sw.GraphError, match="no sink"):
        asyncio.run(flow.start())


# ---- looking at it ----------------------------------------------------------------------------------------


def test_plans_of_unfinished_pipelines(flow: sw.Pipeline) -> None:
    flow.from_collection([1]).map(str).name("text")
    assert "text" in flow.explain()
    assert "text" in flow.explain("json", parallelism=3)
    assert flow.explain("text", parallelism=3) != flow.explain("text")
    assert "text" in flow._repr_html_()
    with pytest.raises(sw.UnknownNameError, match=r"there is no plan format 'txt'\. Did you mean 'text'"):
        flow.explain("txt")  # type: ignore[arg-type]


def test_a_notebook_shows_what_is_wrong(flow: sw.Pipeline) -> None:
    flow.from_collection([1]).uid("<a>").map(str).uid("<a>")
    shown = flow._repr_html_()
    assert "&lt;a&gt;" in shown
    assert "both have uid" in shown


def test_check_finds_what_graph_refuses(flow: sw.Pipeline) -> None:
    flow.from_collection([1]).map(str).name("text")
    assert [f.code for f in flow.check() if f.level.value == "error"] == ["no-sink"]
    with pytest.raises(sw.GraphError, match="no sink"):
        flow.graph()
    sinked = sw.Pipeline("fine", parallelism=4)
    sinked.from_collection([1]).uid("numbers").print()
    assert sinked.check() == []
    assert [f.code for f in sinked.check(max_parallelism=2)] != []


def test_what_it_shows(flow: sw.Pipeline) -> None:
    assert repr(flow) == "<Pipeline 'test': 0 steps>"
    flow.from_collection([1])
    assert repr(flow) == "<Pipeline 'test': 1 step>"


# ---- the face ---------------------------------------------------------------------------------------------


def test_everything_that_is_promised_is_there() -> None:
    for name in sw.__all__:
        assert getattr(sw, name) is not None
        assert name in dir(sw)
    assert sw.Source is Source
    assert sw.Sink is Sink


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(
        AttributeError, match=r"module 'sluiceway' has no attribute 'Pipelin'\. Did you mean 'Pipeline'"
    ):
        sw.Pipelin  # noqa: B018
    for name, said in {
        "TumblingEventTimeWindows": "; it is in sluiceway.windows",
        "WindowContext": "; it is in sluiceway.functions",
        "StreamExecutionEnvironment": r"; use Pipeline\(name\)",
        "Time": '; durations are a timedelta, ms, or a text such as "10s"',
    }.items():
        with pytest.raises(AttributeError, match=f"module 'sluiceway' has no attribute '{name}'{said}$"):
            getattr(sw, name)
    assert not hasattr(sw, "__path_hooks__")
