"""Names of Flink's that this package does not have, and what to use in their place.

One table, :data:`ELSEWHERE`, by the class that people look for a name on. The empty text as class stands for the
package ``sluiceway`` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ELSEWHERE"]

_TYPES: Final = "types are Python's own, and annotations of functions are enough, or returns(type)"
_DURATION: Final = 'durations are a timedelta, ms, or a text such as "10s"'
_CHECKPOINTS: Final = 'use options of run(), as in run(checkpoint_interval="10s", checkpoints="DIRECTORY")'
_RESTART: Final = 'use the option restart, as in run(restart="fixed-delay:3:1s")'
_BACKEND: Final = 'use the option state_backend, as in run(state_backend="rocksdb")'
_NO_CONNECTOR: Final = (
    "there is no connector for it: see `sluiceway plugins`, or write a Source or a Sink of your own"
)
_KAFKA: Final = "use sluiceway_kafka: from sluiceway_kafka import KafkaSource, KafkaSink, KafkaOffsets"
_FILES: Final = 'use source("files", ...) and sink("files", ...)'
_ROW: Final = "records are any Python objects: use a dataclass, a NamedTuple or a dict"
_OPENS: Final = "use {}: every function object has open() and close()"
_SUBTASKS: Final = "use the property {}"
_NOT_HERE: Final = "there is no such thing here"
_NO_JVM: Final = "there is no JVM; what to import is installed with pip, where the program runs"
_TIME_KIND: Final = "time is chosen by the windows and timers that you use: event time or processing time"
_SOURCE: Final = "use source(source), with a Source object or the name of a connector; or from_function(function)"
_SINK: Final = "use sink(sink), with a Sink object or the name of a connector; or for_each(function)"
_TABLE: Final = "use Pipeline.table() for steps in columns, and Pipeline.sql() for queries"
_SCHEMA: Final = "a schema is a pyarrow.Schema, or a class with annotations"
_JSON: Final = (
    'a source decodes its records and a sink encodes them, as KafkaSource(..., deserializer="json") and '
    "FilesSource.json_lines(...)"
)
_UDF: Final = "use TableStream.map_batches(function), with a function of a batch of rows"
_STATE_GET: Final = "use `sluiceway state get`, which reads checkpoints, or with --live a running job of a cluster"
_RETRY: Final = "use AsyncRetryStrategy.fixed_delay(...) or AsyncRetryStrategy.exponential_backoff(...)"
_RETRY_IF: Final = "use the arguments if_result and if_exception of AsyncRetryStrategy.fixed_delay(...)"
_GROUP_WINDOW: Final = (
    'use key_by(...).window(...) with TumblingEventTimeWindows("10min") and others of sluiceway.windows'
)
_TTL: Final = 'use StateTtlConfig("1h", ...), which has an argument for each setting; it is ttl= of a descriptor'

_PACKAGE: Final[Mapping[str, str]] = {
    "StreamExecutionEnvironment": "use Pipeline(name)",
    "Time": _DURATION,
    "Duration": _DURATION,
    "Types": _TYPES,
    "TypeInformation": _TYPES,
    "TypeSerializer": _TYPES,
    "Row": _ROW,
    "RowKind": "streams have no retractions: each row is an insertion",
    "Tuple": _ROW,
    "Configuration": "options are arguments of run(), of the command line, or in sluiceway.toml: see Settings",
    "ConfigOption": "options are arguments of run(): see Settings",
    "ConfigOptions": "options are arguments of run(): see Settings",
    "ExecutionConfig": "options are arguments of Pipeline and run()",
    "ExecutionMode": "bounded input is read as a stream",
    "RuntimeExecutionMode": "bounded input is read as a stream; for one result per key, at its end, use windows: "
    "GlobalWindows.create_with_end_of_stream_trigger()",
    "CheckpointConfig": _CHECKPOINTS,
    "CheckpointingMode": 'use the option checkpoint_mode of run(): "exactly-once" or "at-least-once"',
    "CheckpointStorage": 'use the option checkpoints, as in run(checkpoints="DIRECTORY")',
    "JobManagerCheckpointStorage": 'use the option checkpoints, as in run(checkpoints="DIRECTORY")',
    "FileSystemCheckpointStorage": 'use the option checkpoints, as in run(checkpoints="DIRECTORY")',
    "CustomCheckpointStorage": "a checkpoint storage of your own is a plugin",
    "ExternalizedCheckpointCleanup": "use the option checkpoint_retained of run(): how many are kept",
    "ExternalizedCheckpointRetention": "use the option checkpoint_retained of run(): how many are kept",
    "RestartStrategies": _RESTART,
    "RestartStrategyConfiguration": _RESTART,
    "HashMapStateBackend": 'use the option state_backend of run(): "memory", which is the default',
    "MemoryStateBackend": 'use the option state_backend of run(): "memory", which is the default',
    "FsStateBackend": "use the option checkpoints, which names the directory for them",
    "EmbeddedRocksDBStateBackend": _BACKEND,
    "RocksDBStateBackend": _BACKEND,
    "CustomStateBackend": "a state backend of your own is a plugin",
    "PredefinedOptions": _BACKEND,
    "StateBackend": "it is sluiceway.state.StateBackend, the contract of plugins; to choose one, " + _BACKEND,
    "StateDescriptor": "it is in sluiceway.state; use one of its five kinds",
    "AppendingState": "use ListState, ReducingState or AggregatingState",
    "MergingState": "use ListState, ReducingState or AggregatingState",
    "State": "use ValueState, ListState, MapState, ReducingState or AggregatingState",
    "OperatorStateStore": "it is in sluiceway.functions, and given to a CheckpointedFunction",
    "TimeCharacteristic": _TIME_KIND,
    "SlotSharingGroup": "use the method slot_sharing_group(name) of a stream",
    "MemorySize": _NOT_HERE,
    "Partitioner": "use partition_custom(function, key): a function of key and number of partitions",
    "SourceFunction": "use Pipeline.from_function(function), or a Source",
    "ParallelSourceFunction": "use a Source of sluiceway.connector",
    "RichSourceFunction": "use Pipeline.from_function(function), or a Source",
    "SinkFunction": "use for_each(function), or a Sink",
    "RichSinkFunction": "use for_each(function), or a Sink",
    "RichFunction": _OPENS.format("Function"),
    "BaseCoProcessFunction": "use CoProcessFunction or KeyedCoProcessFunction",
    "BaseBroadcastProcessFunction": "use BroadcastProcessFunction or KeyedBroadcastProcessFunction",
    "InternalWindowFunction": "use ProcessWindowFunction",
    "PassThroughWindowFunction": "leave the window function away",
    "Collector": "functions yield their results, or return a list of them",
    "RecordTimestampAssigner": "use TimestampAssigner, or a function of the record",
    "WatermarkGeneratorSupplier": "use WatermarkStrategy.for_generator(function)",
    "AssignerWithPeriodicWatermarks": "use a WatermarkGenerator, and with_timestamp_assigner() of a strategy",
    "AssignerWithPunctuatedWatermarks": "use a WatermarkGenerator, and with_timestamp_assigner() of a strategy",
    "BoundedOutOfOrdernessTimestampExtractor": "use WatermarkStrategy.for_bounded_out_of_orderness(bound)",
    "AscendingTimestampExtractor": "use WatermarkStrategy.for_monotonous_timestamps()",
    "CountWindow": "the windows of count_window() are GlobalWindow, in sluiceway.windows",
    "CountTumblingWindowAssigner": "use count_window(size)",
    "CountSlidingWindowAssigner": "use count_window(size, slide)",
    "WindowStagger": _NOT_HERE,
    "DynamicEventTimeSessionWindows": "use EventTimeSessionWindows.with_dynamic_gap(function)",
    "DynamicProcessingTimeSessionWindows": "use ProcessingTimeSessionWindows.with_dynamic_gap(function)",
    "WindowOperationDescriptor": _NOT_HERE,
    "AsyncBatchFunction": "use AsyncFunction, and gather() inside it",
    "CachedDataStream": "caching a stream is not built",
    "JobClient": "use JobHandle, which Pipeline.start() returns",
    "JobExecutionResult": "use JobResult, which Pipeline.run() returns",
    "JobID": "a job goes by its name",
    "CompletableFuture": "Pipeline.start() is awaited, and so are result(), stop() and others of JobHandle",
    "InputDependencyConstraint": "bounded input is read as a stream",
    "StreamTableEnvironment": _TABLE,
    "TableEnvironment": _TABLE,
    "EnvironmentSettings": _TABLE,
    "Table": _TABLE,
    "DataTypes": _SCHEMA,
    "Schema": _SCHEMA,
    "ScalarFunction": _UDF,
    "TableFunction": _UDF,
    "udf": _UDF,
    "udtf": "use TableStream.flat_map(function)",
    "udaf": "use agg.custom(function, *columns) of sluiceway.table",
    "col": "use sluiceway.table.col",
    "lit": "use sluiceway.table.lit",
    "Expressions": "expressions are col, lit and when of sluiceway.table",
    "Tumble": _GROUP_WINDOW,
    "Slide": _GROUP_WINDOW,
    "Session": _GROUP_WINDOW,
    "Over": "use key_by(...).over(rows=n) of a stream in columns",
    "SavepointReader": "use sluiceway.savepoint.read(path)",
    "SavepointWriter": "use sluiceway.savepoint.write(path), or edit(path, new_path)",
    "QueryableStateClient": _STATE_GET,
    "AsyncRetryStrategies": _RETRY,
    "FixedDelayRetryStrategy": _RETRY,
    "ExponentialBackoffDelayRetryStrategy": _RETRY,
    "AsyncRetryPredicates": _RETRY_IF,
    "RetryPredicates": _RETRY_IF,
    "ResultFuture": "an async function returns its results",
    "SerializableTimestampAssigner": "use TimestampAssigner, or a function of the record",
    "MapPartitionFunction": "use BatchProcessFunction, which is given many records at a time",
    "RateLimiterStrategy": "use Pipeline.generate(function, rate=...)",
    "SingleOutputStreamOperator": "it is a DataStream",
    "DataStreamSource": "it is a DataStream",
    "SideOutputDataStream": "it is a DataStream",
    "Dataflow": "use Pipeline(name)",
    "Application": "use Pipeline(name)",
    "App": "use Pipeline(name)",
    "PatternStream": "there is no CEP",
    "Pattern": "there is no CEP",
    "CEP": "there is no CEP",
    "DataStreamUtils": _NOT_HERE,
    "MetricGroup": "it is what RuntimeContext.metrics returns, in sluiceway.metrics",
    "Counter": "use RuntimeContext.metrics.counter(name)",
    "Meter": "use a counter, whose rate a reporter's backend computes",
    "Distribution": "use RuntimeContext.metrics.histogram(name)",
    "DeliveryGuarantee": 'use guarantee="exactly-once" of KafkaSink and SqlSink; FilesSink is exactly-once with '
    "checkpoints",
    "NumberSequenceSource": "use Pipeline.from_sequence(start, end)",
    "DataGeneratorSource": "use Pipeline.generate(function, count=...)",
    "CollectionSource": "use Pipeline.from_collection(values)",
    "PrintSinkFunction": "use print()",
    "SocketSource": 'use source("socket", host=..., port=...)',
    "FileSource": _FILES,
    "FileSourceBuilder": _FILES,
    "FileSink": _FILES,
    "StreamingFileSink": _FILES,
    "StreamFormat": _FILES,
    "RollingPolicy": _FILES,
    "BucketAssigner": _FILES,
    "OutputFileConfig": _FILES,
    "FileEnumeratorProvider": _FILES,
    "FileSplitAssignerProvider": _FILES,
    "BulkWriterFactory": _FILES,
    "Encoder": _FILES,
    "CsvReaderFormat": _FILES,
    "CsvSchema": _FILES,
    "JsonRowDeserializationSchema": _JSON,
    "JsonRowSerializationSchema": _JSON,
    "ParquetColumnarRowInputFormat": _FILES,
    "SimpleStringSchema": "texts are str; a source decodes them",
    "SerializationSchema": "a sink encodes its records: write them as str, bytes or dicts",
    "DeserializationSchema": "a source decodes its records",
    "JdbcSink": 'use sink("sql", ...)',
    "JdbcConnectionOptions": 'use sink("sql", ...)',
    "JdbcExecutionOptions": 'use sink("sql", ...)',
    "KafkaSink": _KAFKA,
    "KafkaSource": _KAFKA,
    "KafkaSourceBuilder": _KAFKA,
    "KafkaSinkBuilder": _KAFKA,
    "KafkaOffsetsInitializer": _KAFKA,
    "KafkaRecordSerializationSchema": _KAFKA,
    "KafkaRecordDeserializationSchema": _KAFKA,
    "DynamicKafkaSource": _KAFKA,
    "FlinkKafkaConsumer": _KAFKA,
    "FlinkKafkaProducer": _KAFKA,
    "PulsarSource": _NO_CONNECTOR,
    "PulsarSink": _NO_CONNECTOR,
    "RMQSource": _NO_CONNECTOR,
    "RMQSink": _NO_CONNECTOR,
    "RMQConnectionConfig": _NO_CONNECTOR,
    "FlinkKinesisConsumer": _NO_CONNECTOR,
    "KinesisStreamsSink": _NO_CONNECTOR,
    "KinesisFirehoseSink": _NO_CONNECTOR,
    "CassandraSink": _NO_CONNECTOR,
    "Elasticsearch6SinkBuilder": _NO_CONNECTOR,
    "Elasticsearch7SinkBuilder": _NO_CONNECTOR,
    "ElasticsearchSink": _NO_CONNECTOR,
    "PubSubSource": _NO_CONNECTOR,
    **{
        f"Rich{kind}": _OPENS.format(kind)
        for kind in (
            "MapFunction",
            "FlatMapFunction",
            "FilterFunction",
            "ReduceFunction",
            "AggregateFunction",
            "CoMapFunction",
            "CoFlatMapFunction",
            "AsyncFunction",
            "WindowFunction",
            "AllWindowFunction",
            "JoinFunction",
            "FlatJoinFunction",
            "CoGroupFunction",
        )
    },
}

_BEFORE_RESULT: Final = (
    "it belongs behind window(...), before what makes the results: reduce(), aggregate() and so on"
)

_STREAM: Final[Mapping[str, str]] = {
    "get_name": "the name is set with name(text); Pipeline.explain() shows it",
    "set_name": "use name()",
    "set_uid": "use uid()",
    "set_uid_hash": "use uid(text)",
    "get_type": "Pipeline.explain() shows the types of streams",
    "get_input_type": "Pipeline.explain() shows the types of streams",
    "get_execution_environment": "keep the Pipeline in a variable",
    "force_non_parallel": "use set_parallelism(1)",
    "project": "use map(), as in map(lambda record: (record[0], record[2]))",
    "reinterpret_as_keyed_stream": "use key_by(): records whose key has not changed stay in their worker",
    "split": "use branch(predicate), or side outputs of a process function",
    "select": "use get_side_output(tag)",
    "add_sink": _SINK,
    "sink_to": _SINK,
    "foreach": "use for_each()",
    "time_window": 'use key_by(...).window(TumblingEventTimeWindows("10s"))',
    "time_window_all": 'use window_all(TumblingEventTimeWindows("10s"))',
    "async_wait": "use async_map()",
    "partition_by_hash": "use key_by()",
    "partition": "use partition_custom()",
    "distinct": "use key_by(...).filter_with_state(function)",
    "cache": "caching a stream is not built",
    "close_with": "iterate() returns a stream that has it",
    "write_as_text": 'use sink("files", ...)',
    "write_as_csv": 'use sink("files", ...)',
    "write_to_socket": 'use sink("socket", ...)',
    "to_table": "use to_columns(type)",
    "get_transformation": "Pipeline.graph() has the steps",
    "assign_timestamps": "use assign_timestamps_and_watermarks(strategy)",
    "fold": "use aggregate()",
    "global": "use global_(), as `global` is a word of Python's",
    "as_queryable_state": _STATE_GET,
    "side_output": "emit with ctx.output(tag, value) in a process function, and take it with get_side_output(tag)",
    "flatten": "use flat_map(lambda values: values)",
    "groupby": "use key_by()",
    "group_by": "use key_by()",
    "key_on": "use key_by()",
    "print_to_err": "use for_each(function)",
    "uid_hash": "use uid(text)",
    "map_partition": "use process(function) with a BatchProcessFunction",
    "sort_partition": "use windows: apply(function) is given the records of one, as a list to be sorted",
    "full_window_partition": "use key_by(...).window(GlobalWindows.create_with_end_of_stream_trigger())",
    "apply": "use map(), flat_map() or filter()",
    "update": "use map(), with a function that returns the record",
    "peek": "use inspect(function)",
    "map_value": "use map()",
    "map_values": "use map()",
    "filter_map": "use flat_map()",
    "merge": "use union()",
    "concat": "use union()",
    "redistribute": "use rebalance()",
    "repartition": "use rebalance()",
    "stateful_map": "use key_by(...).map_with_state(function)",
    "stateful_flat_map": "use key_by(...).flat_map_with_state(function)",
    "drop_duplicates": "use key_by(...).filter_with_state(function)",
    "deduplicate": "use key_by(...).filter_with_state(function)",
    "to_topic": "use sink(KafkaSink(servers, topic)), of sluiceway_kafka",
    "tumbling_window": 'use key_by(...).window(TumblingEventTimeWindows("10s"))',
    "hopping_window": 'use key_by(...).window(SlidingEventTimeWindows("10s", "5s"))',
    "sliding_window": 'use key_by(...).window(SlidingEventTimeWindows("10s", "5s"))',
    "session_window": 'use key_by(...).window(EventTimeSessionWindows("10s"))',
    "collect_window": "use key_by(...).window(...).apply(function), which is given the records of a window",
    "mean": "use aggregate(function) with an AggregateFunction",
    "avg": "use aggregate(function) with an AggregateFunction",
    "fold_window": "use key_by(...).window(...).aggregate(function)",
    "reduce_window": "use key_by(...).window(...).reduce(function)",
    "allowed_lateness": _BEFORE_RESULT,
    "side_output_late_data": _BEFORE_RESULT,
}

_PIPELINE: Final[Mapping[str, str]] = {
    "get_execution_environment": "use Pipeline(name)",
    "execute": "use run()",
    "execute_async": "use start()",
    "from_elements": "use from_collection(values)",
    "add_source": _SOURCE,
    "from_source": "use source(source, watermark_strategy=...)",
    "from_data": "use from_collection(values)",
    "read_text_file": 'use source("files", ...)',
    "read_file": 'use source("files", ...)',
    "create_input": _SOURCE,
    "socket_text_stream": 'use source("socket", host=..., port=...)',
    "generate_sequence": "use from_sequence(start, end)",
    "from_parallel_collection": "use from_collection(values)",
    "set_parallelism": "use Pipeline(name, parallelism=...)",
    "get_parallelism": "it is what Pipeline(name, parallelism=...) was given",
    "get_default_local_parallelism": "it is what Pipeline(name, parallelism=...) was given",
    "set_default_local_parallelism": "use Pipeline(name, parallelism=...)",
    "set_max_parallelism": "use Pipeline(name, max_parallelism=...)",
    "get_max_parallelism": "it is what Pipeline(name, max_parallelism=...) was given",
    "register_slot_sharing_group": "use slot_sharing_group(name) of a stream",
    "set_runtime_mode": "bounded input is read as a stream; for one result per key, at its end, use windows: "
    "GlobalWindows.create_with_end_of_stream_trigger()",
    "set_buffer_timeout": "use Pipeline(name, buffer_timeout=...)",
    "get_buffer_timeout": "it is what Pipeline(name, buffer_timeout=...) was given",
    "disable_operator_chaining": "use Pipeline(name, chaining=False)",
    "is_chaining_enabled": "it is what Pipeline(name, chaining=...) was given",
    "is_chaining_of_operators_with_different_max_parallelism_enabled": "use disable_chaining() of a stream",
    "get_config": "options are arguments of Pipeline and run()",
    "configure": "options are arguments of run(), or in sluiceway.toml",
    "get_configuration": "options are arguments of run(), or in sluiceway.toml",
    "get_checkpoint_config": _CHECKPOINTS,
    "enable_checkpointing": "use run(checkpoint_interval=...)",
    "get_checkpoint_interval": "it is an argument of run()",
    "get_checkpointing_mode": "it is an argument of run()",
    "is_unaligned_checkpoints_enabled": "use run(checkpoint_unaligned=True)",
    "is_force_unaligned_checkpoints": "use run(checkpoint_unaligned=True)",
    "enable_unaligned_checkpoints": "use run(checkpoint_unaligned=True)",
    "get_state_backend": _BACKEND,
    "set_state_backend": _BACKEND,
    "enable_changelog_state_backend": _BACKEND,
    "is_changelog_state_backend_enabled": _BACKEND,
    "set_default_savepoint_directory": "give the place to JobHandle.savepoint(place) or to `sluiceway savepoint`",
    "get_default_savepoint_directory": "give the place to JobHandle.savepoint(place) or to `sluiceway savepoint`",
    "set_restart_strategy": _RESTART,
    "get_restart_strategy": _RESTART,
    "add_default_kryo_serializer": _TYPES,
    "register_type_with_kryo_serializer": _TYPES,
    "register_type": _TYPES,
    "set_stream_time_characteristic": _TIME_KIND,
    "get_stream_time_characteristic": _TIME_KIND,
    "add_python_file": "the program's own imports are enough",
    "set_python_requirements": "install what the program needs with pip",
    "add_python_archive": "the program's own imports are enough",
    "set_python_executable": "the program runs in the Python that it is started with",
    "add_jars": _NO_JVM,
    "add_classpaths": _NO_JVM,
    "get_execution_plan": "use explain()",
    "get_stream_graph": "use graph()",
    "register_cached_file": "there is no distributed cache: read the file in open()",
    "register_job_listener": "listeners outside plugins are not built; a plugin's hooks are told of jobs",
    "close": "nothing is left open after run()",
    "union": "use union() of a stream",
    "execute_sql": "use sql(query, name=table, ...)",
    "sql_query": "use sql(query, name=table, ...)",
    "create_temporary_view": "name the tables of a query in sql(query, name=table, ...)",
    "from_pandas": "use table(frame)",
    "from_path": "use table(source)",
    "create_statement_set": "give the pipeline several sinks, and call run()",
    "dataframe": "use source(KafkaSource(servers, topic)), of sluiceway_kafka",
    "topic": "use source(KafkaSource(servers, topic)), of sluiceway_kafka",
    "agent": "use source(KafkaSource(servers, topic)), of sluiceway_kafka",
    "Table": "use key_by(...).process(function) with keyed state",
    "set_auto_watermark_interval": "use run(auto_watermark_interval=...)",
    "set_latency_tracking_interval": "use run(latency_interval=...)",
}

_RUNTIME: Final[Mapping[str, str]] = {
    "get_task_name": "use the property operator_name",
    "get_task_name_with_subtasks": "use the properties operator_name and index_of_this_subtask",
    "get_number_of_parallel_subtasks": _SUBTASKS.format("number_of_parallel_subtasks"),
    "get_max_number_of_parallel_subtasks": _SUBTASKS.format("max_number_of_parallel_subtasks"),
    "get_index_of_this_subtask": _SUBTASKS.format("index_of_this_subtask"),
    "get_attempt_number": _SUBTASKS.format("attempt_number"),
    "get_job_name": _SUBTASKS.format("job_name"),
    "get_job_id": "a job goes by its name: use the property job_name",
    "get_job_parameter": "give it to the function object's __init__",
    "get_metrics_group": "use the property metrics",
    "get_metric_group": "use the property metrics",
    "get_task_info": "use the properties index_of_this_subtask, attempt_number and so on",
    "get_job_info": "use the property job_name",
    "get_execution_config": "give what the function needs to its __init__",
    "get_distributed_cache": "there is no distributed cache: read the file in open()",
    "get_broadcast_variable": "use a broadcast stream and its state",
    "get_accumulator": "use the property metrics",
    "add_accumulator": "use the property metrics",
    "get_int_counter": "use metrics.counter(name)",
    "get_broadcast_state": "broadcast state is for BroadcastProcessFunction: ctx.get_broadcast_state(descriptor)",
}

_CONTEXT: Final[Mapping[str, str]] = {
    "current_key": "use get_current_key()",
    "key": "use get_current_key()",
    "collect": "functions yield their results",
    "side_output": "use output(tag, value)",
    "get_timestamp": "use timestamp()",
    "get_timer_service": "use timer_service()",
    "get_runtime_context": "keep the context that open() is given",
    "get_state": "ask for state in open(), which is given a RuntimeContext",
    "register_event_time_timer": "use timer_service().register_event_time_timer(timestamp)",
    "register_processing_time_timer": "use timer_service().register_processing_time_timer(timestamp)",
    "get_current_watermark": "use current_watermark()",
    "get_current_processing_time": "use current_processing_time()",
    "timer_service": "it is for functions behind key_by(...)",
    "get_current_key": "it is for functions behind key_by(...)",
}

_DESCRIPTOR: Final[Mapping[str, str]] = {
    "enable_time_to_live": 'give the descriptor ttl=, as in ttl=StateTtlConfig("1h")',
    "get_name": "use the attribute name",
    "get_type": "use the attribute type",
    "get_element_type_info": "use the attribute type",
    "set_queryable": _STATE_GET,
    "get_default_value": "use the attribute default",
}

_TTL_BUILDER: Final[Mapping[str, str]] = {
    "new_builder": _TTL,
    "newBuilder": _TTL,
    "Builder": _TTL,
    "TtlTimeCharacteristic": "it is processing time",
    "CleanupStrategies": "use the arguments that begin with cleanup_",
    "get_update_type": "use the attribute update_type",
    "get_state_visibility": "use the attribute state_visibility",
    "get_ttl": "use the attribute ttl_ms",
    "get_ttl_time_characteristic": "it is processing time",
    "get_cleanup_strategies": "use the attributes that begin with cleanup_",
    "set_ttl": _TTL,
    "set_update_type": _TTL,
    "update_ttl_on_create_and_write": _TTL,
    "update_ttl_on_read_and_write": _TTL,
    "set_state_visibility": _TTL,
    "never_return_expired": _TTL,
    "return_expired_if_not_cleaned_up": _TTL,
    "use_processing_time": "it is processing time",
    "set_ttl_time_characteristic": "it is processing time",
    "cleanup_in_rocksdb_compact_filter": "use the arguments cleanup_incrementally and cleanup_full_snapshot",
    "disable_cleanup_in_background": "use the argument cleanup_incrementally=0",
    "build": _TTL,
}

_COUNT_WINDOWS: Final = (
    "rows of several senders have no order, so which row is the n-th depends on arrival: use over(rows=n), whose "
    "rows are in order of event time, or running(). Where arrival may decide, use "
    "to_records().key_by(...).count_window(n)"
)

_ORDERED: Final = (
    "a stream without an end has no order over all rows: key_by(...).over(rows=n) takes those of a key in the "
    "order of event time, to_arrow().sort_by(column) sorts the results of input that ends"
)
_FIRST_ROWS: Final = "use to_arrow().slice(0, n), or to_records().take(n)"
_TABLE_JOINS: Final = (
    "use key_by(...).interval_join(other, lower, upper) or key_by(...).asof_join(other); lookup(rows, on=column) "
    "with rows that stay the same; a join in windows works on records: to_records().join(...)"
)
_TOP: Final = "use key_by(...).window(...).aggregate(top=agg.top_k(column, n))"
_AGGREGATE: Final = "use aggregate(name=agg.{}), with agg of sluiceway.table"
_OF_A_KEY: Final = (
    "use key_by(...).aggregate(name=agg.{0}) for one row per key at the end of the input, or with window(...) "
    "before it; or key_by(...).running(name=agg.{0}) for one per row; agg is in sluiceway.table"
)
_AGGREGATES: Final[Mapping[str, str]] = {
    "count": "count()",
    "mean": "mean(column)",
    "avg": "mean(column)",
    "sum": "sum(column)",
    "min": "min(column)",
    "max": "max(column)",
    "min_by": "min(column)",
    "max_by": "max(column)",
    "reduce": "sum(column)",
    "agg": "sum(column)",
}
_BEHIND_KEY_BY: Final = "say first what to make of the rows of a key, as in aggregate(...) or running(...)"
_BEFORE_KEY_BY: Final = "call it before key_by(...)"
_RECORDS_BY_KEY: Final = "it works on records: to_records().key_by(...)"

_TABLE_STREAM: Final[Mapping[str, str]] = {
    "where": "use filter()",
    "branch": "use filter() for each part",
    "inspect": "use map_batches(function) with a function that returns the batch, or to_records().inspect()",
    "group_by": "use key_by(*columns), then aggregate(), window() or running()",
    "groupby": "use key_by(*columns), then aggregate(), window() or running()",
    "order_by": _ORDERED,
    "sort": _ORDERED,
    "sort_values": _ORDERED,
    "limit": _FIRST_ROWS,
    "fetch": _FIRST_ROWS,
    "head": _FIRST_ROWS,
    "take": _FIRST_ROWS,
    "distinct": "use key_by(*columns).distinct()",
    "unique": "use key_by(*columns).distinct()",
    "deduplicate": "use key_by(*columns).distinct()",
    "drop_duplicates": "use key_by(*columns).distinct()",
    "join": _TABLE_JOINS,
    "left_outer_join": _TABLE_JOINS,
    "right_outer_join": _TABLE_JOINS,
    "full_outer_join": _TABLE_JOINS,
    "merge": _TABLE_JOINS,
    "join_lateral": "use explode(column) or lookup_async(function, ...)",
    "union_all": "use union()",
    "concat": "use union()",
    "with_column": "use with_columns()",
    "add_columns": "use with_columns()",
    "add_or_replace_columns": "use with_columns()",
    "assign": "use with_columns()",
    "drop_columns": "use drop()",
    "rename_columns": "use rename()",
    "alias": "use rename()",
    "cast": "use with_columns(name=col(name).cast(type))",
    "apply": "use map_batches() or map()",
    "top_n": _TOP,
    "over_window": "use key_by(...).over(rows=n)",
    "flat_aggregate": _TOP,
    "to_pandas": "use to_arrow().to_pandas()",
    "to_polars": "use polars.from_arrow(), which takes what to_arrow() returns",
    "to_list": "use to_arrow().to_pylist()",
    "to_pylist": "use to_arrow().to_pylist()",
    "execute_and_collect": "use to_arrow()",
    "to_data_stream": "use to_records()",
    "to_append_stream": "use to_records()",
    "to_changelog_stream": "use to_records(): streams have no retractions",
    "to_retract_stream": "use to_records(): streams have no retractions",
    "execute": "use to_arrow(), or sink(), print() or collect() and run() of the pipeline",
    "execute_insert": "use sink(), and run() of the pipeline",
    "insert_into": "use sink()",
    "get_schema": "use the property schema",
    "print_schema": "use the property schema",
    "columns": "use schema.names",
    "explain": "use explain() of the pipeline",
    **{name: _OF_A_KEY.format(call) for name, call in _AGGREGATES.items()},
}

_BUILT_BY: Final = "use {}, which has an argument for each setting"
_KAFKA_SOURCE: Final = _BUILT_BY.format("KafkaSource(servers, topics, ...)")
_KAFKA_SINK: Final = _BUILT_BY.format("KafkaSink(servers, topic, ...)")
_OFFSETS: Final = (
    'use start= and stop= of KafkaSource, with "earliest", "latest", "committed", KafkaOffsets.timestamp(ms) or '
    "KafkaOffsets.partitions({...})"
)
_SERIALIZERS: Final = 'use serializer=, key= and key_serializer= of KafkaSink, as in serializer="json"'
_FILES_SOURCE: Final = "use FilesSource.text(paths), .csv(paths), .json_lines(paths) or .parquet(paths)"
_FILES_SINK: Final = (
    "use FilesSink.text(directory), .csv(directory), .json_lines(directory) or .parquet(directory), with "
    "roll_size and roll_interval as arguments"
)
_SQL_SINK: Final = _BUILT_BY.format('SqlSink(database, table, columns, guarantee="exactly-once")')

ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "": _PACKAGE,
    "DataStream": _STREAM,
    "TableStream": _TABLE_STREAM,
    "KeyedTable": {
        "count_window": _COUNT_WINDOWS,
        "select": _AGGREGATE.format("sum(column)"),
        "top_n": _TOP,
        "order_by": _ORDERED,
        "deduplicate": "use distinct()",
        "join": _TABLE_JOINS,
        **{name: _OF_A_KEY.format(call).replace("key_by(...).", "") for name, call in _AGGREGATES.items()},
        **dict.fromkeys(("to_records", "to_arrow", "print", "sink", "collect"), _BEHIND_KEY_BY),
        **dict.fromkeys(("filter", "with_columns", "lookup", "map", "map_batches", "union"), _BEFORE_KEY_BY),
        **dict.fromkeys(("process", "apply"), _RECORDS_BY_KEY + ".process(...)"),
    },
    "WindowedTable": {
        "select": _AGGREGATE.format("sum(column)"),
        **{name: _AGGREGATE.format(call) for name, call in _AGGREGATES.items()},
        **{
            name: f"{_RECORDS_BY_KEY}.window(...).{name}(...)"
            for name in ("process", "apply", "trigger", "evictor")
        },
    },
    "agg": {
        "avg": "use mean(column)",
        "average": "use mean(column)",
        "median": "use quantile(column, 0.5)",
        "std": "use stddev(column)",
        "stddev_samp": "use stddev(column)",
        "stddev_pop": "use stddev(column, ddof=0)",
        "var": "use variance(column)",
        "var_samp": "use variance(column)",
        "var_pop": "use variance(column, ddof=0)",
        "first_value": "use first(column)",
        "last_value": "use last(column)",
        "list_agg": "use collect(column)",
        "array_agg": "use collect(column)",
        "n_unique": "use count_distinct(column)",
        "approx_count_distinct": "use count_distinct(column)",
        "len": "use count()",
        "size": "use count()",
    },
    "OverTable": {
        "select": _AGGREGATE.format("sum(column)"),
        **{name: _AGGREGATE.format(call) for name, call in _AGGREGATES.items()},
    },
    "KafkaSource": {"builder": _KAFKA_SOURCE},
    "KafkaSink": {"builder": _KAFKA_SINK},
    "KafkaOffsets": {"committed_offsets": _OFFSETS, "offsets": _OFFSETS},
    "FilesSource": {
        "for_record_stream_format": _FILES_SOURCE,
        "for_bulk_file_format": _FILES_SOURCE,
        "builder": _FILES_SOURCE,
        "json": _FILES_SOURCE,
    },
    "FilesSink": {
        "for_row_format": _FILES_SINK,
        "for_bulk_format": _FILES_SINK,
        "builder": _FILES_SINK,
        "json": _FILES_SINK,
    },
    "SqlSink": {"sink": _SQL_SINK, "exactly_once_sink": _SQL_SINK, "builder": _SQL_SINK},
    "sluiceway_kafka": {
        "KafkaSourceBuilder": _KAFKA_SOURCE,
        "FlinkKafkaConsumer": _KAFKA_SOURCE,
        "KafkaSinkBuilder": _KAFKA_SINK,
        "FlinkKafkaProducer": _KAFKA_SINK,
        "KafkaOffsetsInitializer": _OFFSETS,
        "KafkaRecordSerializationSchema": _SERIALIZERS,
        "KafkaRecordDeserializationSchema": "use deserializer= and key_deserializer= of KafkaSource",
    },
    "sluiceway_files": {"FileSource": _FILES_SOURCE, "FileSink": _FILES_SINK, "StreamingFileSink": _FILES_SINK},
    "sluiceway_sql": {"JdbcSink": _SQL_SINK},
    "Pipeline": _PIPELINE,
    "RuntimeContext": _RUNTIME,
    "Context": _CONTEXT,
    "WindowContext": {
        **_CONTEXT,
        "current_key": "the function is given the key",
        "key": "the function is given the key",
        "get_current_key": "the function is given the key",
        "timer_service": "windows have triggers: a Trigger of your own sets timers",
        "current_window": "use window()",
    },
    "TriggerContext": {
        "get_partitioned_state": "use get_state(), get_reducing_state() and so on, with a descriptor",
        "get_key_value_state": "use get_state(descriptor)",
        "get_current_watermark": "use current_watermark()",
        "get_current_processing_time": "use current_processing_time()",
        "merge_partitioned_state": "use merge_state(descriptor)",
        "get_metric_group": "use the metrics of a function's RuntimeContext",
        "get_current_key": "use the property key",
    },
    "StateDescriptor": _DESCRIPTOR,
    "StateTtlConfig": _TTL_BUILDER,
    "TimerService": {
        "register_timer": "use register_event_time_timer() or register_processing_time_timer()",
        "get_current_watermark": "use current_watermark()",
        "get_current_processing_time": "use current_processing_time()",
    },
    "MetricGroup": {
        "meter": "use counter(name), whose rate a reporter's backend computes",
        "distribution": "use histogram(name)",
        "add_group": "metrics of a function have no groups: put the word into the name",
        "get_all_variables": "metrics are labelled with job, step and subtask",
        "get_metric_identifier": "metrics are labelled with job, step and subtask",
    },
    "JobHandle": {
        "get_job_id": "a job goes by its name",
        "get_job_status": "use the attribute status",
        "get_job_execution_result": "use `await handle.result()`",
        "trigger_savepoint": "use `await handle.savepoint(place)`",
        "stop_with_savepoint": "use `await handle.stop(savepoint=place)`",
        "get_accumulators": "use the method metrics()",
    },
    "JobResult": {
        "get_job_id": "a job goes by its name: use job_name",
        "get_net_runtime": "use metrics",
        "get_job_execution_result": "this is it",
        "get_accumulator_result": "use metrics",
        "get_all_accumulator_results": "use metrics",
        "is_job_execution_result": "this is one",
    },
    "WatermarkStrategy": {
        "for_generator_supplier": "use for_generator(function)",
        "with_watermark_generator": "use for_generator(function)",
        "get_timestamp_assigner": "use the attribute assigner",
    },
}
