"""Names of PyFlink's DataStream API: each is here, or its error names what is here in its place."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import sluiceway as sw
import sluiceway.functions
import sluiceway.windows
from sluiceway.metrics import MetricGroup
from sluiceway.util.flink_names import ELSEWHERE

# As in the reference of PyFlink 2 and in the packages pyflink.datastream and pyflink.common.
CLASSES = """
    StreamExecutionEnvironment CheckpointConfig CheckpointingMode CoMapFunction CoFlatMapFunction DataStream
    FlatMapFunction FilterFunction KeySelector Partitioner ReduceFunction RuntimeContext SinkFunction
    SourceFunction StateBackend MapFunction MemoryStateBackend FsStateBackend RocksDBStateBackend
    CustomStateBackend PredefinedOptions ExternalizedCheckpointCleanup TimeCharacteristic TimeDomain
    ProcessFunction TimerService KeyedStream WindowedStream AllWindowedStream ConnectedStreams DataStreamSink
    BroadcastStream CachedDataStream BroadcastConnectedStream OutputTag RuntimeExecutionMode SlotSharingGroup
    MemorySize AggregateFunction KeyedProcessFunction CoProcessFunction KeyedCoProcessFunction
    BroadcastProcessFunction KeyedBroadcastProcessFunction WindowFunction AllWindowFunction
    ProcessWindowFunction ProcessAllWindowFunction Function BaseCoProcessFunction BaseBroadcastProcessFunction
    AsyncFunction AsyncDataStream AsyncRetryStrategy HashMapStateBackend EmbeddedRocksDBStateBackend
    JobManagerCheckpointStorage FileSystemCheckpointStorage CustomCheckpointStorage CheckpointStorage
    OperatorStateStore State ValueState AppendingState MergingState ReducingState AggregatingState ListState
    MapState ReadOnlyBroadcastState BroadcastState StateDescriptor ValueStateDescriptor ListStateDescriptor
    MapStateDescriptor ReducingStateDescriptor AggregatingStateDescriptor StateTtlConfig TimeWindow
    GlobalWindow CountWindow Trigger TriggerResult WindowAssigner MergingWindowAssigner
    TumblingEventTimeWindows TumblingProcessingTimeWindows SlidingEventTimeWindows
    SlidingProcessingTimeWindows EventTimeSessionWindows ProcessingTimeSessionWindows
    DynamicEventTimeSessionWindows GlobalWindows DynamicProcessingTimeSessionWindows
    SessionWindowTimeGapExtractor CountTumblingWindowAssigner CountSlidingWindowAssigner EventTimeTrigger
    ProcessingTimeTrigger CountTrigger PurgingTrigger ContinuousEventTimeTrigger
    ContinuousProcessingTimeTrigger ProcessingTimeoutTrigger DeltaTrigger Sink Source DeliveryGuarantee
    NumberSequenceSource JdbcSink JdbcConnectionOptions JdbcExecutionOptions KafkaSource KafkaSink
    FlinkKafkaConsumer FlinkKafkaProducer KafkaOffsetsInitializer KafkaRecordSerializationSchema
    DynamicKafkaSource PulsarSource PulsarSink RMQSource RMQSink RMQConnectionConfig FileSource FileSink
    StreamingFileSink BucketAssigner FileEnumeratorProvider FileSourceBuilder FileSplitAssignerProvider
    OutputFileConfig RollingPolicy StreamFormat HybridSource CassandraSink FlinkKinesisConsumer
    KinesisStreamsSink KinesisFirehoseSink CompletableFuture Configuration ConfigOption ConfigOptions
    ExecutionConfig ExecutionMode InputDependencyConstraint JobClient JobExecutionResult JobID JobStatus
    RestartStrategies RestartStrategyConfiguration Types TypeInformation TypeSerializer Row RowKind Time
    Duration WatermarkStrategy SimpleStringSchema SerializationSchema DeserializationSchema Encoder
    BulkWriterFactory JsonRowDeserializationSchema JsonRowSerializationSchema RichMapFunction
    RichFlatMapFunction RichFilterFunction RichReduceFunction RichAsyncFunction RichSinkFunction
    RichSourceFunction RichCoMapFunction Collector TimestampAssigner WatermarkGenerator WatermarkOutput
    StreamTableEnvironment Expressions udf udaf udtf Tumble Slide Session Over SavepointReader SavepointWriter
    AsyncRetryPredicates ResultFuture SerializableTimestampAssigner MapPartitionFunction PatternStream
    SingleOutputStreamOperator DataStreamSource RateLimiterStrategy QueryableStateClient
"""

METHODS = {
    "StreamExecutionEnvironment": """
        get_config set_parallelism set_max_parallelism register_slot_sharing_group get_parallelism
        get_max_parallelism set_runtime_mode set_buffer_timeout get_buffer_timeout disable_operator_chaining
        is_chaining_enabled get_checkpoint_config enable_checkpointing get_checkpoint_interval
        get_checkpointing_mode get_state_backend set_state_backend enable_changelog_state_backend
        is_changelog_state_backend_enabled set_default_savepoint_directory get_default_savepoint_directory
        set_restart_strategy get_restart_strategy
        add_default_kryo_serializer register_type_with_kryo_serializer register_type
        set_stream_time_characteristic get_stream_time_characteristic configure add_python_file
        set_python_requirements add_python_archive set_python_executable add_jars add_classpaths
        get_default_local_parallelism set_default_local_parallelism execute execute_async get_execution_plan
        register_cached_file get_execution_environment create_input add_source from_source read_text_file
        from_collection is_unaligned_checkpoints_enabled is_force_unaligned_checkpoints close
        from_elements socket_text_stream""",
    "DataStream": """
        get_name name uid set_uid_hash set_parallelism set_max_parallelism get_type get_execution_environment
        force_non_parallel set_buffer_timeout start_new_chain disable_chaining slot_sharing_group set_description
        map flat_map key_by filter union connect shuffle project rescale rebalance forward broadcast process
        assign_timestamps_and_watermarks partition_custom add_sink sink_to execute_and_collect print
        get_side_output window_all count_window_all cache split select map_partition full_window_partition
        sort_partition print_to_err allowed_lateness side_output_late_data as_queryable_state""",
    "KeyedStream": """
        map flat_map reduce filter add_sink key_by process window union connect partition_custom print sum min max
        min_by max_by count_window""",
    "DataStreamSink": "name uid set_uid_hash set_parallelism set_description disable_chaining slot_sharing_group",
    "WindowedStream": """
        get_execution_environment get_input_type trigger allowed_lateness apply process reduce aggregate evictor
        side_output_late_data""",
    "ConnectedStreams": "key_by map flat_map process",
    "RuntimeContext": """
        get_task_name get_number_of_parallel_subtasks get_max_number_of_parallel_subtasks get_index_of_this_subtask
        get_attempt_number get_task_name_with_subtasks get_job_parameter get_metrics_group get_state get_list_state
        get_map_state get_reducing_state get_aggregating_state getIndexOfThisSubtask""",
    "Context": "timestamp output timer_service get_current_key current_key",
    "WindowContext": """
        window current_processing_time current_watermark window_state global_state output""",
    "TriggerContext": """
        get_current_processing_time get_current_watermark register_processing_time_timer
        register_event_time_timer delete_processing_time_timer delete_event_time_timer get_partitioned_state
        get_metric_group""",
    "TimerService": """
        current_processing_time current_watermark register_processing_time_timer register_event_time_timer
        delete_processing_time_timer delete_event_time_timer""",
    "ValueState": "value update clear",
    "ListState": "get add add_all update clear",
    "MapState": "get put put_all remove contains items keys values is_empty clear",
    "ReducingState": "get add clear",
    "AggregatingState": "get add clear",
    "ValueStateDescriptor": "enable_time_to_live name get_name",
    "MapStateDescriptor": "enable_time_to_live name get_name",
    "StateTtlConfig": """
        new_builder UpdateType StateVisibility TtlTimeCharacteristic CleanupStrategies get_update_type
        get_state_visibility get_ttl get_ttl_time_characteristic is_enabled get_cleanup_strategies""",
    "MetricGroup": "counter gauge meter distribution add_group",
    "JobClient": """
        get_job_id get_job_status cancel stop_with_savepoint trigger_savepoint get_accumulators
        get_job_execution_result""",
    "JobExecutionResult": "get_job_id get_net_runtime get_accumulator_result get_all_accumulator_results",
    "WatermarkStrategy": """
        for_monotonous_timestamps for_bounded_out_of_orderness no_watermarks for_generator with_timestamp_assigner
        with_idleness with_watermark_alignment""",
}


def bare(kind: type) -> Any:
    """An object of a class, abstract or not, that was never initialised: enough to ask for methods."""
    concrete: Any = type(kind.__name__, (kind,), {"__slots__": ()})
    concrete.__abstractmethods__ = frozenset()
    return object.__new__(concrete)


def owner(name: str) -> Any:
    flow = sw.Pipeline()
    numbers = flow.from_collection([1])
    keyed = numbers.key_by(lambda n: n)
    made: dict[str, Any] = {
        "StreamExecutionEnvironment": flow,
        "DataStream": numbers,
        "KeyedStream": keyed,
        "DataStreamSink": numbers.print(),
        "WindowedStream": keyed.window(sluiceway.windows.TumblingEventTimeWindows.of(5)),
        "ConnectedStreams": numbers.connect(numbers),
        "ValueStateDescriptor": sw.ValueStateDescriptor("n"),
        "MapStateDescriptor": sw.MapStateDescriptor("n"),
        "StateTtlConfig": sw.StateTtlConfig("1h"),
        "MetricGroup": MetricGroup(),
        "WatermarkStrategy": sw.WatermarkStrategy.no_watermarks(),
    }
    kinds = {
        "Context": sw.KeyedProcessFunction.Context,
        "WindowContext": sluiceway.functions.WindowContext,
        "TriggerContext": sluiceway.windows.TriggerContext,
        "JobClient": sw.JobHandle,
        "JobExecutionResult": sw.JobResult,
    }
    return made[name] if name in made else bare(kinds[name] if name in kinds else getattr(sw, name))


def said(given: Any, name: str) -> str:
    """What a user reads who asks for a name, or the empty text where it is there."""
    try:
        getattr(given, name)
    except AttributeError as error:
        return "".join(traceback.format_exception_only(error))
    return ""


@pytest.mark.parametrize("name", CLASSES.split())
def test_every_class_is_here_or_something_else_is_named(name: str) -> None:
    for module in (sw, sluiceway.windows, sluiceway.functions):
        if hasattr(module, name):
            return
    assert "; " in said(sw, name)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in METHODS.items() for name in names.split()]
)
def test_every_method_is_here_or_something_else_is_named(kind: str, name: str) -> None:
    message = said(owner(kind), name)
    assert not message or "; " in message or "Did you mean" in message


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("from sluiceway import KafkaSource", "from sluiceway_kafka import KafkaSource"),
        ("from sluiceway import PulsarSource", "there is no connector for it"),
        ("from sluiceway import RichMapFunction", "use MapFunction: every function object has open() and close()"),
        ("from sluiceway import TumblingEventTimeWindows", "it is in sluiceway.windows"),
        ("from sluiceway.functions import RichMapFunction", "use MapFunction"),
        ("from sluiceway.windows import CountWindow", "GlobalWindow"),
        ("from sluiceway import Pipelin", "Did you mean 'Pipeline'?"),
    ],
)
def test_an_import_says_it_too(statement: str, hint: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert hint in str(caught.value)
    assert "cannot import name" in str(caught.value)


def test_queryable_state_is_read_by_a_command() -> None:
    for owner_of_it in (owner("DataStream"), owner("KeyedStream")):
        assert "use `sluiceway state get`" in said(owner_of_it, "as_queryable_state")
    assert "use `sluiceway state get`" in said(owner("ValueStateDescriptor"), "set_queryable")


def test_classes_answer_for_static_methods() -> None:
    with pytest.raises(AttributeError, match=r"StateTtlConfig has no new_builder; use StateTtlConfig\("):
        sw.StateTtlConfig.new_builder(1)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"Pipeline has no get_execution_environment; use Pipeline\(name\)"):
        sw.Pipeline.get_execution_environment()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["split", "select", "fold", "sync", "zip", "mop"])
def test_no_name_is_suggested_that_is_not_meant(name: str) -> None:
    """Python's own suggestions, by the names of an object, count as well."""
    assert "Did you mean" not in said(sw.Pipeline().from_collection([1]), name)


def test_what_is_in_the_table_is_not_there() -> None:
    for kind, of in (("DataStream", "DataStream"), ("Pipeline", "StreamExecutionEnvironment")):
        for name in ELSEWHERE[kind]:
            assert said(owner(of), name), name
    for name in ELSEWHERE[""]:
        assert said(sw, name), name
