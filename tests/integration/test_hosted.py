"""Workers that something else places, reached over TCP: here, by a host that starts them on this machine."""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.config.settings import Settings, resolve
from sluiceway.connector.lib import DiscardSink
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import Job, JobStatus
from sluiceway.errors import ConfigurationError
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster.cluster_job import ClusterJob
from sluiceway.runtime.cluster.state_receiver import StateReceiver
from sluiceway.runtime.cluster.worker_host import WorkerHost
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, WorkerHandle, start_worker
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.tasks import StoreStatePart
from sluiceway.streamgraph import StreamGraph

pytest.importorskip("zmq", reason="needs pyzmq")


class Host(WorkerHost):
    """Starts workers here, each with a directory of its own, as if they were elsewhere."""

    transport = "zmq"

    def __init__(self) -> None:
        self.log: list[str] = []

    def open(self) -> str:
        self.log.append("open")
        return "127.0.0.1"

    def start(self, config: WorkerConfig) -> WorkerHandle:
        assert config.manager.startswith("tcp://127.0.0.1:")
        self.log.append(config.name)
        return start_worker(replace(config, directory=tempfile.mkdtemp(prefix="elsewhere-")))

    def close(self) -> None:
        self.log.append("close")


def prepared(flow: sw.Pipeline, host: WorkerHost, **options: Any) -> Job:
    services = default_manager().services()

    def make(graph: StreamGraph, settings: Settings) -> ClusterJob:
        return ClusterJob(job_graph_of(graph, services), settings, services, host)

    return flow._make_job(make, resolve(options).settings)


@pytest.fixture(autouse=True)
def _over_tcp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICEWAY_ZMQ_BIND", "tcp://127.0.0.1:*")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_job_runs_on_workers_that_are_reached_over_tcp() -> None:
    flow = sw.Pipeline("counts", parallelism=2)
    words = ["to", "be", "or", "not", "to", "be"] * 50
    counted = flow.from_collection(words).key_by(lambda word: word).count().collect()
    host = Host()
    host.doing = "looking for room"
    job = prepared(flow, host, workers=2)
    assert job.metrics().doing == "looking for room"
    result = job.run()
    assert result.status is JobStatus.FINISHED
    assert job.metrics().doing == ""  # workers have told of theirs
    assert host.log == ["open", "worker-1", "worker-2", "close"]
    totals: dict[str, int] = {}
    for word, count in counted:
        totals[word] = max(count, totals.get(word, 0))
    assert totals == {"to": 100, "be": 100, "or": 50, "not": 50}


def test_the_host_is_closed_when_a_job_fails() -> None:
    flow = sw.Pipeline("fails", parallelism=2)
    flow.from_sequence(-9, 9).map(lambda n: 1 // n).collect()
    host = Host()
    with pytest.raises(ZeroDivisionError):
        prepared(flow, host, workers=2).run()
    assert host.log[-1] == "close"


def shout(value: int) -> int:
    print(f"at {value}")
    if value == 3:
        logging.getLogger("mine").warning("three")
        logging.getLogger("mine").info("not told")
    return value


def test_what_workers_print_and_log_comes_to_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    flow = sw.Pipeline("shouts", parallelism=2)
    flow.from_sequence(0, 9).map(shout).name("shout").print("seen")
    prepared(flow, Host(), workers=2).run()
    told = capfd.readouterr()
    lines = sorted(told.out.splitlines())
    assert lines[:10] == [f"at {n}" for n in range(10)]
    assert sorted(re.sub(r"seen:[12]> ", "", line) for line in lines[10:] if line.startswith("seen")) == [
        str(n) for n in range(10)
    ]
    (logged,) = [line for line in told.err.splitlines() if "three" in line]
    assert re.search(r"WARNING +\[worker-[12], shouts 'shout' [12]/2\] mine: three$", logged)
    assert "not told" not in told.err


def test_what_is_printed_by_a_sink_is_not_left_out_however_much_it_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = sw.Pipeline("prints", parallelism=2)
    flow.from_sequence(1, 60_000).map(lambda n: f"{n:0>100}").print()
    prepared(flow, Host(), workers=2).run()
    told = capfd.readouterr()
    assert len(set(told.out.splitlines())) == 60_000
    assert "left out" not in told.err


def test_a_module_that_workers_do_not_find_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def double(n): return 2 * n\n")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = importlib.import_module("only_here")
    flow = sw.Pipeline("lacks", parallelism=2)
    flow.from_sequence(0, 9).map(only_here.double).sink(DiscardSink())
    job = prepared(flow, Host(), workers=2, restart="fixed-delay:99:0ms")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="only_here") as caught:
        job.run()
    notes = "\n".join(caught.value.__notes__)
    assert re.search(
        r"on \S+, by \S+: install it there, or have it sent along, as with --py-files of Spark", notes
    )
    assert job.metrics().restarts == 0


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_of_what_is_printed_that_is_gone_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = sw.Pipeline("prints", parallelism=2)
    flow.generate().print()
    job = prepared(flow, Host(), workers=2, restart="fixed-delay:99:0ms")
    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        job.run()


def test_json_lines_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    flow = sw.Pipeline("shouts", parallelism=2)
    flow.from_sequence(0, 9).map(shout).name("shout").sink(DiscardSink())
    prepared(flow, Host(), workers=2, log_format="json").run()
    (logged,) = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "three" in line]
    assert (logged["level"], logged["operator"], logged["message"]) == ("WARNING", "shout", "three")


def test_a_transport_of_one_machine_is_refused() -> None:
    flow = sw.Pipeline("no", parallelism=2)
    flow.from_sequence(0, 9).map(lambda n: os.getpid()).collect()
    with pytest.raises(ConfigurationError, match=r"'shm' is for workers on one machine; .* which is 'zmq' then"):
        prepared(flow, Host(), workers=2, transport="shm")


def test_engine_local_places_no_workers() -> None:
    flow = sw.Pipeline("no")
    flow.from_sequence(0, 9).collect()
    with pytest.raises(ConfigurationError, match=r"engine 'local' .* starts its own workers; .* --engine"):
        flow.run(hosted=True)


def test_workers_that_share_no_files_send_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[int] = []
    take = StateReceiver.take

    def noted(self: StateReceiver, part: StoreStatePart) -> None:
        took.append(len(part.data))
        take(self, part)

    monkeypatch.setattr(StateReceiver, "take", noted)
    marks = str(tmp_path / "mark")

    def failing_once(value: int) -> int:
        if value == 2_000 and not os.path.exists(marks):
            Path(marks).touch()
            raise ValueError(value)
        return value

    flow = sw.Pipeline("sends", parallelism=2)
    numbers = flow.source(GeneratorSource(count=4_000, rate=8_000)).map(failing_once)
    pairs = numbers.map(lambda n: (n % 8, n, "x" * 20_000)).key_by(lambda pair: pair[0])
    counts = pairs.reduce(lambda a, b: b).map(lambda pair: pair[1]).collect()
    result = prepared(flow, Host(), workers=2, checkpoint_interval="20ms", restart="fixed-delay:1:0ms").run()
    assert (result.status, result.metrics.restarts) == (JobStatus.FINISHED, 1)
    assert set(counts) == set(range(4_000))
    assert 20_000 < max(took) <= 1 << 20
    assert not list(tmp_path.glob("sluiceway-*"))
