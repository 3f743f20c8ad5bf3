"""Start of prepared jobs in the job manager, with their metrics reporters."""

from __future__ import annotations

from dataclasses import replace

from sluiceway.clock import Clock
from sluiceway.engine import Services
from sluiceway.metrics import JobMetrics
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.job_preparation import PreparedJob
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.jobmanager.job_metrics import Reporting
from sluiceway.runtime.logging.engine_log import ERROR, log

__all__ = ["JobLauncher"]


class JobLauncher:
    """Launcher of jobs, and owner of their metrics reporters. From the job manager's loop only.

    Args:
        manager: runs the jobs.
        services: factories of the plugins in this process.
    """

    def __init__(self, manager: JobManager, services: Services) -> None:
        self._manager = manager
        self._services = services
        self._clock: Clock = services.clock
        self._reporting: dict[str, Reporting] = {}

    def launch(self, prepared: PreparedJob) -> JobRun:
        """Start a job; no task of it is deployed before the next turn of the loop.

        What a metrics reporter raises in opening is raised here; its later errors are logged and do not end the
        job.
        """
        settings = prepared.settings
        # Checked here and not on a worker, which a failure would end, with the tasks of other jobs.
        self._services.state_backend(settings.state_backend)
        reporters = self._services.metrics_reporters(settings.metrics)
        run = self._manager.submit(prepared)
        if not reporters:
            return run
        job = prepared.job

        def metrics() -> JobMetrics:
            return replace(run.metrics(), job=job)

        def failed(error: Exception) -> None:
            log(ERROR, "jobs", "metrics reporting stopped", job=job, error=error)

        reporting = Reporting(
            reporters, self._manager.loop, self._clock, settings.metrics_interval_ms, metrics, failed
        )
        self._reporting[job] = reporting
        try:
            reporting.open(job)
        except BaseException:
            self.withdraw(job, run)
            raise
        run.master.events.listen(reporting)
        return run

    def withdraw(self, job: str, run: JobRun) -> None:
        """Undo a launch, in the same turn of the loop."""
        run.cancel()
        del self._manager.jobs[job]
        self._manager.backgrounds.drop(job)
        self.close_reporting(job)

    def close_reporting(self, job: str) -> None:
        """Report the metrics of a job for the last time."""
        reporting = self._reporting.pop(job, None)
        if reporting is not None:
            try:
                reporting.close()
            except Exception as error:
                log(ERROR, "jobs", "the last metrics were not reported", job=job, error=error)
