"""A job on workers that a host places."""

from __future__ import annotations

import threading

import pytest
from patience import PATIENT_S, until

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.engine import JobStatus
from sluiceway.graph import build_job_graph
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster.cluster_job import ClusterJob
from sluiceway.runtime.cluster.worker_host import WorkerHost
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, WorkerHandle, start_worker


class ThisMachine(WorkerHost):
    """Host that places workers here, and has pages of its own once it is open."""

    transport = "zmq"

    def open(self) -> str:
        self.pages = "http://127.0.0.1:4040"
        return "127.0.0.1"

    def start(self, config: WorkerConfig) -> WorkerHandle:
        return start_worker(config)

    def close(self) -> None:
        """Workers end with the job."""


def test_a_job_tells_the_pages_of_its_host_while_it_runs() -> None:
    pytest.importorskip("zmq", reason='not installed: pip install "sluiceway[zmq]"')
    flow = sw.Pipeline("endless")
    flow.generate(rate=100).for_each(abs)
    settings = Settings(workers=1)
    job = ClusterJob(build_job_graph(flow.graph(settings)), settings, default_manager().services(), ThisMachine())
    assert job.describe().engine_url == ""
    thread = threading.Thread(target=job.run)
    thread.start()
    until(lambda: job.status is JobStatus.RUNNING and job.metrics().records_in)
    assert job.describe().engine_url == "http://127.0.0.1:4040"
    job.cancel()
    thread.join(PATIENT_S)
    assert (job.status, job.describe().engine_url) == (JobStatus.CANCELED, "")
