"""Kill workers, the job manager and brokers at random while a job copies between topics, and check the results.

There are three brokers, of which one at a time may be dead. A job of two subtasks reads records of a few hundred
keys, counts each key in keyed state, and sums each key up in windows of event time; both results go to topics,
exactly once. At the end an independent consumer of committed records compares these topics with the first one.

    python -m benchmarks.kafkasoak --minutes 10
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from benchmarks.clusterkills import ClusterKills
from sluiceway.testing.kafka import KafkaCluster, KafkaUnavailableError

__all__ = ["CheckedCounts", "CheckedWindows", "KafkaSoak", "main"]

KEYS: Final = 300
PARTITIONS: Final = 4
BROKERS: Final = 3
WINDOW_MS: Final = 10_000
LATENESS_MS: Final = 2_000
STUCK_S: Final = 300
RECORDS, COUNTS, WINDOWS = "records", "counts", "windows"

PIPELINE: Final = """
    import sluiceway as sw
    from sluiceway.windows import TumblingEventTimeWindows
    from sluiceway_kafka import KafkaSink, KafkaSource


    class Count(sw.KeyedProcessFunction):
        def open(self, ctx):
            self._seen = ctx.get_state(sw.ValueStateDescriptor("seen", int))

        def process_element(self, value, ctx):
            seen = (self._seen.value() or 0) + 1
            self._seen.update(seen)
            yield [*value, seen]


    def sums(key, window, records):
        yield [key, window.start, len(records), sum(number for _, number in records)]


    def sink(topic):
        prefix = "soak-" + topic
        return KafkaSink(
            "{servers}",
            topic,
            serializer="json",
            key=lambda result: result[0],
            guarantee="exactly-once",
            transactional_id_prefix=prefix,
        )


    flow = sw.Pipeline("kafkasoak", parallelism=2)
    source = KafkaSource("{servers}", "records", deserializer="json", group_id="soak")
    in_time = sw.WatermarkStrategy.for_bounded_out_of_orderness("{lateness}ms")
    by_key = flow.source(source, watermark_strategy=in_time).uid("records").key_by(lambda record: record[0])
    by_key.process(Count()).uid("count").sink(sink("counts")).uid("counts")
    by_key.window(TumblingEventTimeWindows("{window}ms")).process(sums).uid("sum").sink(sink("windows")).uid("windows")
"""


@dataclass
class CheckedCounts:
    """Results for single records: key, number, and how many records of the key there were up to it.

    The numbers of each key are 0, 1, 2, ..., and were written in this order.

    Attributes:
        expected: how many numbers each key has.
        received: how many results have come.
        doubled: how many of them had come before.
        wrong: how many have another count than they should, or are for a record that was not written.
        out_of_order: how many came after a higher number of their key.
    """

    expected: dict[str, int]
    received: int = 0
    doubled: int = 0
    wrong: int = 0
    out_of_order: int = 0
    _seen: set[tuple[str, int]] = field(default_factory=set, repr=False)
    _last: dict[str, int] = field(default_factory=dict, repr=False)

    def take(self, results: Iterable[Any]) -> None:
        """Take results in the order of their partitions; those of a key are in one."""
        for key, number, count in results:
            self.received += 1
            self.doubled += (key, number) in self._seen
            self._seen.add((key, number))
            self.wrong += count != number + 1 or number >= self.expected.get(key, 0)
            last = self._last.get(key, -1)
            self.out_of_order += number < last
            self._last[key] = max(number, last)

    @property
    def lost(self) -> int:
        """Return the number of records without a result."""
        return sum(
            (key, number) not in self._seen for key, total in self.expected.items() for number in range(total)
        )


@dataclass
class CheckedWindows:
    """Results for windows: key, start, number of records and sum of their numbers.

    Attributes:
        expected: number and sum for each key and start.
        received: how many results have come.
        doubled: how many of them had come before.
        wrong: how many are other than they should be.
        out_of_order: how many came after a later window of their key.
    """

    expected: dict[tuple[str, int], list[int]]
    received: int = 0
    doubled: int = 0
    wrong: int = 0
    out_of_order: int = 0
    _found: Counter[tuple[str, int]] = field(default_factory=Counter, repr=False)
    _last: dict[str, int] = field(default_factory=dict, repr=False)

    def take(self, results: Iterable[Any]) -> None:
        """Take results in the order of their partitions; those of a key are in one."""
        for key, start, *sums in results:
            self.received += 1
            self.doubled += self._found[key, start] > 0
            self._found[key, start] += 1
            self.wrong += sums != self.expected.get((key, start))
            last = self._last.get(key, -1)
            self.out_of_order += start < last
            self._last[key] = max(start, last)

    @property
    def lost(self) -> int:
        """Return the number of windows without a result."""
        return len(self.expected.keys() - self._found.keys())


class KafkaSoak(ClusterKills):
    """One run.

    Args:
        place: a directory for all that it writes.
        brokers: three, running; called in the thread that has started them.
        rate: records per second.
        seed: of what is killed when, and of the records.
    """

    def __init__(self, place: Path, brokers: KafkaCluster, rate: int, seed: int) -> None:
        self._servers = brokers.bootstrap_servers
        pipeline = dedent(PIPELINE).format(servers=self._servers, lateness=LATENESS_MS, window=WINDOW_MS)
        super().__init__(place, "kafkasoak", pipeline, "memory", seed)
        self.broker_kills = 0
        self.produced = 0
        self._brokers = brokers
        self._dead: int | None = None
        self._rate = rate
        self._ended = threading.Event()
        self._producing = threading.Thread(target=self._produce, args=(seed,))
        self._make_topics()
        self._producing.start()

    # ---- records ----------------------------------------------------------------------------------------------

    def _make_topics(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self._admin = AdminClient({"bootstrap.servers": self._servers})
        topics = [NewTopic(name, PARTITIONS) for name in (RECORDS, COUNTS, WINDOWS)]
        for made in self._admin.create_topics(topics).values():
            made.result(60)

    def _produce(self, seed: int) -> None:
        from confluent_kafka import Producer

        lots = random.Random(seed)
        numbers: dict[str, int] = defaultdict(int)
        settings = {"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5}
        producer = Producer({**settings, "on_delivery": self._delivered})
        began = time.monotonic()
        while not self._ended.wait(max(0.0, began + self.produced / self._rate - time.monotonic())):
            for _ in range(max(self._rate // 100, 1)):
                key = f"key{lots.randrange(KEYS)}"
                at_ms = int(time.time() * 1000) - lots.randrange(LATENESS_MS)
                while True:
                    try:
                        producer.produce(RECORDS, json.dumps([key, numbers[key]]), key, timestamp=at_ms)
                        break
                    except BufferError:
                        producer.poll(0.1)
                numbers[key] += 1
                self.produced += 1
            producer.poll(0)
        left = producer.flush(STUCK_S)
        if left:
            self.problems.append(f"{left} records were not written in {STUCK_S} s")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.problems.append(f"a record was not written: {error}")

    def end(self) -> None:
        """Stop producing."""
        self._ended.set()
        self._producing.join()

    # ---- kills ------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        lot = self._lots.random()
        if self._dead is not None and lot < 0.5:
            self._revive()
        elif self._dead is None and lot < 0.4 and self._all_in_sync():
            self._dead = self._lots.randrange(BROKERS) + 1
            self.broker_kills += 1
            self._killed_at = time.monotonic()
            self._brokers.kill(self._dead)
        else:
            super()._kill()

    def _revive(self) -> None:
        if self._dead is not None:
            self._killed_at = time.monotonic()
            self._brokers.start(self._dead)
            self._dead = None
            self._brokers.wait()

    def _all_in_sync(self) -> bool:
        """Return whether another broker may die: with two replicas left, acknowledged records stay."""
        topics = self._admin.list_topics(timeout=30).topics
        return all(len(p.isrs) == BROKERS for topic in topics.values() for p in topic.partitions.values())

    def _before_the_end(self) -> None:
        self.end()
        self._revive()
        seen, moved = 0, time.monotonic()
        for message in self._read(COUNTS, wait=True):
            if message is not None:
                seen, moved = seen + 1, time.monotonic()
            if seen >= self.produced:
                return
            if time.monotonic() - moved > STUCK_S:
                self.problems.append(f"{seen} of {self.produced} results came, and no more in {STUCK_S} s")
                return

    # ---- results ----------------------------------------------------------------------------------------------

    def _read(self, topic: str, *, wait: bool = False) -> Iterator[Any]:
        """The committed records of a topic; with ``wait`` without end, and None for each second without any."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        settings = {"bootstrap.servers": self._servers, "group.id": "check", "enable.auto.commit": False}
        settings |= {"isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer(settings)
        left = set(range(PARTITIONS))
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        idle = 0
        try:
            while left or wait:
                message = consumer.poll(1)
                error = None if message is None else message.error()
                if message is None or error is not None:
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        left.discard(message.partition())
                    elif not wait and (idle := idle + 1) > STUCK_S:
                        raise RuntimeError(f"{topic} cannot be read: {error or 'no answer'}")
                    if wait:
                        yield None
                    continue
                yield message
        finally:
            consumer.close()

    def results(self) -> tuple[CheckedCounts, CheckedWindows]:
        """Compare both topics of results with the records."""
        totals: dict[str, int] = defaultdict(int)
        windows: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        for message in self._read(RECORDS):
            key, number = json.loads(message.value())
            if number != totals[key]:
                self.problems.append(f"the producer wrote {number} of {key} after {totals[key] - 1}")
            totals[key] = number + 1
            sums = windows[key, message.timestamp()[1] // WINDOW_MS * WINDOW_MS]
            sums[0] += 1
            sums[1] += number
        counts = CheckedCounts(dict(totals))
        counts.take(json.loads(message.value()) for message in self._read(COUNTS))
        found = CheckedWindows(dict(windows))
        found.take(json.loads(message.value()) for message in self._read(WINDOWS))
        return counts, found


def main(arguments: list[str] | None = None) -> int:
    """Run it, and print the counts. 0: nothing was lost, doubled, wrong or out of order."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafkasoak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="for how long processes are killed; 10")
    parser.add_argument("--rate", type=int, default=1_000, help="records per second; 1000")
    parser.add_argument("--seed", type=int, default=None, help="of what is killed when")
    parser.add_argument("--keep", metavar="DIR", help="leave what was written in DIR")
    asked = parser.parse_args(arguments)
    if find_spec("confluent_kafka") is None:
        parser.error('confluent-kafka is not installed: pip install "sluiceway[kafka]"')
    seed = random.SystemRandom().getrandbits(32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    place = Path(asked.keep or tempfile.mkdtemp(prefix="kafkasoak-")).absolute()
    place.mkdir(exist_ok=not asked.keep)
    try:
        with KafkaCluster(BROKERS, root=place / "kafka") as brokers:
            soak = KafkaSoak(place, brokers, asked.rate, seed)
            try:
                soak.run(asked.minutes * 60)
            finally:
                soak.end()
                soak.sluiceway("cluster", "stop", check=False)
            return report(soak, asked.minutes, seed)
    except KafkaUnavailableError as error:
        parser.error(str(error))
    finally:
        if not asked.keep:
            shutil.rmtree(place)


def report(soak: KafkaSoak, minutes: float, seed: int) -> int:
    """Print the table; 0: nothing was lost, doubled, wrong or out of order."""
    counts, windows = soak.results()
    soak.problems += soak.left_over()
    rows = [
        ("minutes of kills", f"{minutes:g}"),
        ("workers killed", soak.worker_kills),
        ("job managers killed", soak.manager_kills),
        ("brokers killed", soak.broker_kills),
        ("restarts of the job", soak.restarts),
        ("number of the last checkpoint", soak.checkpoints),
    ]
    if soak.recoveries:
        median, longest = statistics.median(soak.recoveries), max(soak.recoveries)
        rows.append(
            ("from a kill until two checkpoints were complete", f"{median:.1f} s; {longest:.1f} s at most")
        )
    rows.append(("records read", sum(counts.expected.values())))
    checked: tuple[tuple[str, CheckedCounts | CheckedWindows], ...]
    checked = (("results of single records", counts), ("results of windows", windows))
    wrong = 0
    for name, each in checked:
        bad = (each.lost, each.doubled, each.wrong, each.out_of_order)
        rows.append((name, each.received))
        rows.append(("of these lost; doubled; wrong; out of order", "; ".join(map(str, bad))))
        wrong += sum(bad)
    print("\n| | |\n|---|---|")
    for row in rows:
        print(f"| {row[0]} | {row[1]} |")
    for problem in soak.problems:
        print(f"problem: {problem}", file=sys.stderr)
    failed = bool(wrong or soak.problems or not counts.received or not windows.received)
    if failed:
        print(f"again with: python -m benchmarks.kafkasoak --seed {seed}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
