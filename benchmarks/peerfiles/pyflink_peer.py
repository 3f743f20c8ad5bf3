"""Word count and windows on PyFlink's local cluster at parallelism 1, as commands on standard input ask for them.

It runs in an environment of PyFlink's own, without this project; ``benchmarks.peerprogram`` has the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.common.time import Duration
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.functions import AggregateFunction
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink.java_gateway import get_gateway


def main() -> None:
    for command in sys.stdin:
        what, job, source, *output = command.rstrip("\n").split("\t")
        environment = StreamExecutionEnvironment.get_execution_environment(Configuration())
        environment.set_parallelism(1)
        environment.set_python_executable(sys.executable)  # else the first on PATH, for the functions' process
        lines = environment.from_source(
            FileSource.for_record_stream_format(StreamFormat.text_line_format(), source).build(),
            WatermarkStrategy.no_watermarks(),
            "lines",
        )
        results = words(lines) if job == "words" else windows(lines)
        seconds = 0.0
        if what == "check":
            with open(output[0], "w", encoding="utf-8") as file, results.execute_and_collect() as found:
                file.writelines(
                    f"{result[0]}\t{result[1]}\n" if job == "words" else f"{result}\n" for result in found
                )
        else:
            sinks = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2
            results.sink_to(Sink(sinks.DiscardingSink()))
            # From the start of the job in the local cluster that is made for it.
            seconds = environment.execute().get_net_runtime() / 1e3
        print(seconds, flush=True)


def words(lines: Any) -> Any:
    pairs = lines.flat_map(split, output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
    return pairs.key_by(lambda pair: pair[0], key_type=Types.STRING()).reduce(lambda a, b: (a[0], a[1] + b[1]))


def split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split(" "):
        yield word, 1


def windows(lines: Any) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
        TimeOfEvent()
    )
    events = lines.map(event_of, output_type=Types.TUPLE([Types.INT(), Types.INT(), Types.LONG()]))
    keyed = events.assign_timestamps_and_watermarks(strategy).key_by(lambda event: event[0], key_type=Types.INT())
    return keyed.window(TumblingEventTimeWindows.of(Time.seconds(10))).aggregate(
        Sum(), accumulator_type=Types.LONG(), output_type=Types.LONG()
    )


def event_of(line: str) -> tuple[int, int, int]:
    user, amount, time = line.split(",")
    return int(user), int(amount), int(time)


class TimeOfEvent(TimestampAssigner):  # type: ignore[misc]
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[2])


class Sum(AggregateFunction):  # type: ignore[misc]
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value[1])

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


if __name__ == "__main__":
    main()
