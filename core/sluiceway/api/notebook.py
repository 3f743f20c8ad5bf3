"""Jobs in a notebook: live figures below the cell, and interrupts."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sluiceway.api.interrupts import cancel_on_sigint
from sluiceway.engine import Job, JobResult

if TYPE_CHECKING:
    from sluiceway.metrics import JobMetrics
    from sluiceway.monitoring.rates import RateMeter

__all__ = ["LiveView", "in_notebook", "job_html", "run_in_notebook"]

_FIRST_S: Final = 0.5
"""Jobs that end earlier are not shown."""
_PERIOD_S: Final = 1.0
_STYLE: Final = "font-variant-numeric: tabular-nums; margin: 0.3em 0"


def in_notebook() -> bool:
    """Return True in a kernel of Jupyter. Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def run_in_notebook(job: Job, name: str) -> JobResult:
    """Run a job to its end, with its figures below the cell.

    Raises:
        KeyboardInterrupt: the cell was interrupted; the job was cancelled.
        BaseException: what the job failed with.
    """
    with cancel_on_sigint(job) as interrupts, _shown(job, name):
        result = job.run()
    interrupts.raise_if_any(name)
    return result


@contextmanager
def _shown(job: Job, name: str) -> Iterator[None]:
    view = LiveView(job, name, after_s=_FIRST_S)
    try:
        yield
    finally:
        view.close()


class LiveView:
    """Figures of a job in the output of the cell that runs now, until the job ends.

    They are written by a thread of their own; what goes wrong there ends the view and nothing else.

    Args:
        job: its figures are read.
        name: of its pipeline.
        after_s: time that passes before anything is shown.
    """

    def __init__(self, job: Job, name: str, *, after_s: float = 0.0) -> None:
        self._job = job
        self._name = name
        self._after_s = after_s
        self._closed = threading.Event()
        self._handle: Any = None
        # The kernel finds the cell that an output belongs to in its context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._tell,), name="sluiceway-notebook", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Show the last figures, if any were shown, and end the thread."""
        self._closed.set()
        self._thread.join()

    def _tell(self) -> None:
        from sluiceway.monitoring.rates import RateMeter

        meter = RateMeter()
        with suppress(Exception):
            over = self._closed.wait(self._after_s)
            while not over:
                self._show(meter)
                over = self._closed.wait(_PERIOD_S) or self._job.status.ended
            if self._handle is not None:
                self._show(meter)

    def _show(self, meter: RateMeter) -> None:
        display: Any = import_module("IPython.display").display
        html, text = job_html(self._job, self._name, meter)
        content = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def job_html(job: Job, name: str, meter: RateMeter) -> tuple[str, str]:
    """Return the figures of a job as HTML and as text.

    Args:
        job: the job.
        name: of its pipeline.
        meter: has seen the metrics of the job before, or is new: then rates are those since its start.
    """
    from sluiceway.monitoring.diagnosis import diagnose
    from sluiceway.runtime.jobmanager.job_description import failure_info

    metrics = job.metrics()
    rates = meter.read("", metrics)
    description, checkpoints = job.describe(), job.checkpoints()
    sources = {vertex.id for vertex in description.vertices if vertex.is_source}
    per_s = sum(r.in_per_s for r in rates if r.metrics.vertex_id in sources)
    facts = [metrics.status, *_facts(metrics, per_s)]
    done = [c for c in checkpoints if c.status == "completed"]
    if done:
        age_s = max(0.0, time.time() - done[-1].triggered_ms / 1000)
        facts.append(f"checkpoint {done[-1].checkpoint}" + ("" if job.status.ended else f" {_age(age_s)} ago"))
    if metrics.restarts:
        facts.append(f"{metrics.restarts} restart{'s' * (metrics.restarts != 1)}")
    failures = [failure_info(failure) for failure in job.failures()]
    found = diagnose(description, metrics, rates, checkpoints, failures)
    advice = "" if job.status.ended or found.healthy else found.summary
    html = f'<div style="{_STYLE}"><b>{escape(name)}</b> {escape(" · ".join(facts))}'
    html += f"<br>{escape(advice)}</div>" if advice else "</div>"
    return html, f"{name}: {', '.join(facts)}" + (f"\n{advice}" if advice else "")


def _facts(metrics: JobMetrics, per_s: float) -> Iterator[str]:
    from sluiceway.monitoring.figures import figures, show_count, show_seconds, show_watermark

    now = figures(metrics)
    yield show_seconds(now.elapsed_s)
    if now.doing and not now.records_in:
        yield now.doing
        return
    running = metrics.running
    yield f"{now.records_in:,} records in" + (f" ({show_count(per_s)}/s)" if running else "")
    yield f"{now.records_out:,} out"
    if now.watermark is not None:
        yield f"watermark {show_watermark(now.watermark)}"


def _age(seconds: float) -> str:
    from sluiceway.monitoring.figures import show_seconds

    return show_seconds(round(seconds))
