"""Progress of a job on stderr: lines while it runs, and one closing line."""

from __future__ import annotations

import json
import threading
from collections import deque
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO

from sluiceway.cli.terminal import LiveLine
from sluiceway.monitoring.figures import Figures, figures, show_count, show_seconds, show_watermark
from sluiceway.util.visible_text import moves_cursor, visible_on

if TYPE_CHECKING:
    from sluiceway.engine import Job
    from sluiceway.metrics import JobMetrics

__all__ = ["Progress", "summary", "summary_json"]

LIVE_INTERVAL_S: Final = 0.25
PLAIN_INTERVAL_S: Final = 5.0
WORKERS_WINDOW_S: Final = 2.0


def _line(f: Figures) -> str:
    if f.doing and not f.records_in:
        return f"{show_seconds(f.elapsed_s)} | {f.doing}"  # of records nothing is known yet
    # The date comes last: it is what a narrow terminal may cut off.
    parts = [
        show_seconds(f.elapsed_s),
        *([f.doing] if f.doing else []),
        f"in {show_count(f.in_per_s)}/s",
        f"out {show_count(f.out_per_s)}/s",
        *_ways(f),
        f"watermark {show_watermark(f.watermark)}",
    ]
    return " | ".join(parts)


def _ways(f: Figures) -> list[str]:
    """Format the figures that show if the job keeps up."""
    if not f.micro_batches:
        return [f"busy {f.busy:.0%}", f"back-pressured {f.backpressured:.0%}"]
    parts = [f"micro-batch {f.micro_batches:,} took {show_seconds(f.micro_batch_s)}"]
    return parts if f.lag_ms is None else [*parts, f"lag {show_seconds(f.lag_ms / 1000)}"]


def summary(metrics: JobMetrics) -> str:
    """Return the closing line, and one line for each sink with a known latency."""
    f = figures(metrics)
    rate = f" ({show_count(f.in_per_s)}/s)" if metrics.elapsed_s >= 0.1 else ""
    records = f"{metrics.records_in:,} record{'' if metrics.records_in == 1 else 's'}"
    lines = [
        f"{metrics.job_name}: {metrics.status} after {show_seconds(metrics.elapsed_s)}, "
        f"{records} in{rate}, {metrics.records_out:,} out"
    ]
    for sink, quantiles in metrics.latency_ms.items():
        told = ", ".join(f"{label} {ms:.2f} ms" for label, ms in quantiles.items())
        lines.append(f"latency to {sink}: {told}")
    return "\n".join(lines)


def summary_json(metrics: JobMetrics) -> str:
    """Return the closing line as a JSON object."""
    return _json(
        "summary",
        metrics,
        {
            "elapsed_s": round(metrics.elapsed_s, 3),
            "records_in": metrics.records_in,
            "records_out": metrics.records_out,
            "latency_ms": {sink: dict(quantiles) for sink, quantiles in metrics.latency_ms.items()},
        },
    )


def _json(event: str, metrics: JobMetrics, rest: dict[str, Any]) -> str:
    return json.dumps({"event": event, "job": metrics.job_name, "status": metrics.status, **rest})


def _progress_json(metrics: JobMetrics, f: Figures) -> str:
    return _json(
        "progress",
        metrics,
        {
            "elapsed_s": round(f.elapsed_s, 3),
            "records_in": f.records_in,
            "records_out": f.records_out,
            "in_per_s": round(f.in_per_s, 1),
            "out_per_s": round(f.out_per_s, 1),
            "busy": round(f.busy, 3),
            "backpressured": round(f.backpressured, 3),
            "watermark": f.watermark,
            **({"micro_batches": f.micro_batches, "micro_batch_s": f.micro_batch_s} if f.micro_batches else {}),
            **({"doing": f.doing} if f.doing else {}),
        },
    )


class Progress:
    """Progress display of a running job, written by a thread that ends with the context.

    On a terminal one line changes in place, several times a second; elsewhere a new line comes every few
    seconds. Standard output is left alone.

    Args:
        job: the job; its metrics are read.
        stream: where to write, as a rule stderr.
        as_json: whether lines are JSON objects; then none changes in place.
        interval_s: seconds between lines; None: as suits the stream.
    """

    def __init__(
        self, job: Job, stream: TextIO, *, as_json: bool = False, interval_s: float | None = None
    ) -> None:
        self._job = job
        self._stream = stream
        self._as_json = as_json
        self._live: LiveLine | None = None
        if not as_json and moves_cursor(stream):
            self._live = LiveLine(stream)
        self._interval_s = interval_s or (LIVE_INTERVAL_S if self._live else PLAIN_INTERVAL_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="sluiceway-progress", daemon=True)
        self._guard = ExitStack()

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._guard.enter_context(self._live.guard_output())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._guard.close()

    def _tell(self) -> None:
        write = self._live.show if self._live is not None else self._write
        past: deque[JobMetrics] = deque()
        while not self._stop.wait(self._interval_s):
            try:
                now = self._job.metrics()
                write(self._shown(now, past[0] if past else None))
            except Exception as error:
                # Progress is a courtesy: without it the job goes on.
                with suppress(OSError, ValueError):
                    write(f"warning: no more progress is shown ({type(error).__name__}: {error})")
                return
            past.append(now)
            # Figures of workers come in steps: rates over less than several of them would jump.
            window_s = WORKERS_WINDOW_S if any(t.worker for t in now.subtasks) else 0.0
            while len(past) > 1 and now.elapsed_s - past[1].elapsed_s >= window_s:
                past.popleft()

    def _shown(self, now: JobMetrics, before: JobMetrics | None) -> str:
        f = figures(now, before)
        if self._as_json:
            return _progress_json(now, f)
        if not now.elapsed_s:  # on a cluster of others that may take half a minute
            doing = now.doing or "starting"
            return doing if self._live is not None else f"{now.job_name}: {doing}"
        if self._live is not None:
            return _line(f)
        total = f" | total {f.records_in:,} in, {f.records_out:,} out" if f.records_in or not f.doing else ""
        return f"{now.job_name}: {_line(f)}{total}"

    def _write(self, text: str) -> None:
        self._stream.write(visible_on(self._stream, text) + "\n")
        self._stream.flush()
