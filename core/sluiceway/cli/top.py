"""``sluiceway top``: the operators of a running cluster, as they go."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

import click

from sluiceway import exit_codes
from sluiceway.cli.jobs import id_of
from sluiceway.cli.processes import process_table
from sluiceway.cli.terminal import shows_colours
from sluiceway.monitoring.figures import lowest_watermark, show_count, show_watermark
from sluiceway.monitoring.rates import RateMeter, SubtaskRates
from sluiceway.util.visible_text import moves_cursor, padded, visible_line, width_of

if TYPE_CHECKING:
    from sluiceway.metrics import JobMetrics
    from sluiceway.runtime.cluster.client import ClusterClient

__all__ = ["Meter", "Row", "table", "top"]

# The alternate screen, without a cursor, and with lines cut at its edge, as wrapped ones make it scroll; and back.
_SCREEN: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_BACK: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"
_HEAD: Final = (
    "operator",
    "in/s",
    "out/s",
    "busy",
    "blocked",
    "idle",
    "waiting",
    "subtasks",
    "watermark",
    "backlog",
    "buffers",
)
_NAME_WIDTH: Final = 40
_LIVING: Final = ("created", "running", "restarting", "cancelling", "failing")
# Backgrounds of the 256 colours, from nothing to all: what is busy gets hot, what is blocked gets dark.
_HOT: Final = (None, 58, 94, 130, 166, 160)
_DARK: Final = (None, 252, 248, 244, 240, 235)


@dataclass(frozen=True, slots=True)
class Row:
    """An operator, or a chain of them.

    Attributes:
        operator: its name.
        in_per_s: records read per second, by all subtasks.
        out_per_s: records sent on per second.
        busy: share of the time in which the busiest subtask worked.
        blocked: share in which the one that waited most could not emit.
        idle: share in which the one that was idle least had no input.
        waiting: share in which the one that waited most could have worked, but another task of its process ran.
        subtasks: busy and blocked share of each subtask.
        watermark: the lowest that left (ms), or None if some have none and the others are at their end.
        backlog: batches that wait for credit.
        buffers_in_use: network buffers that the outputs have.
        buffers: and may have.
    """

    operator: str
    in_per_s: float
    out_per_s: float
    busy: float
    blocked: float
    idle: float
    waiting: float
    subtasks: tuple[tuple[float, float], ...]
    watermark: int | None
    backlog: int
    buffers_in_use: int
    buffers: int


class Meter:
    """Rows of jobs between consecutive readings."""

    def __init__(self) -> None:
        self._rates = RateMeter()

    def rows(self, job: str, metrics: JobMetrics) -> list[Row]:
        """Return the operators of a job, in the order of the plan."""
        by_vertex: dict[int, list[SubtaskRates]] = {}
        for rates in self._rates.read(job, metrics):
            by_vertex.setdefault(rates.metrics.vertex_id, []).append(rates)
        return [_row(subtasks) for subtasks in by_vertex.values()]


def _row(subtasks: list[SubtaskRates]) -> Row:
    tasks = [rates.metrics for rates in subtasks]
    left = [t.watermark if t.output_watermark is None else t.output_watermark for t in tasks]
    return Row(
        operator=tasks[0].vertex,
        in_per_s=sum(s.in_per_s for s in subtasks),
        out_per_s=sum(s.out_per_s for s in subtasks),
        busy=max(s.busy for s in subtasks),
        blocked=max(s.blocked for s in subtasks),
        idle=min(s.idle for s in subtasks),
        waiting=max(s.waiting for s in subtasks),
        subtasks=tuple((s.busy, s.blocked) for s in subtasks),
        watermark=lowest_watermark(left),
        backlog=sum(t.backlog for t in tasks),
        buffers_in_use=sum(t.buffers_in_use for t in tasks),
        buffers=sum(t.buffers for t in tasks),
    )


# ---- on the terminal ----------------------------------------------------------------------------------------


def table(rows: Iterable[Row], colour: bool) -> list[str]:
    """Return the lines of a table of operators; with ``colour``, shares have backgrounds."""
    cells = [[(name, "") for name in _HEAD], *(_cells(row) for row in rows)]
    widths = [max(width_of(line[i][0]) for line in cells) for i in range(len(_HEAD))]
    return ["  ".join(_painted(*c, w, colour) for c, w in zip(line, widths, strict=True)) for line in cells]


def _cells(row: Row) -> list[tuple[str, str]]:
    name = visible_line(row.operator)
    if len(name) > _NAME_WIDTH:
        name = name[: _NAME_WIDTH - 3] + "..."
    # A digit is tenths of busy; what is rather blocked than busy is a '#'.
    heat = "".join(
        "#" if blocked > max(busy, 0.1) else str(min(int(busy * 10), 9)) for busy, blocked in row.subtasks
    )
    paint = "".join(_background(*((_DARK, b) if b > max(a, 0.1) else (_HOT, a))) + "m" for a, b in row.subtasks)
    return [
        (name, ""),
        (show_count(row.in_per_s), ""),
        (show_count(row.out_per_s), ""),
        (f"{row.busy:.0%}", _background(_HOT, row.busy) + "m"),
        (f"{row.blocked:.0%}", _background(_DARK, row.blocked) + "m"),
        (f"{row.idle:.0%}", ""),
        (f"{row.waiting:.0%}", ""),
        (heat, paint),
        (show_watermark(row.watermark), ""),
        (str(row.backlog), ""),
        (f"{row.buffers_in_use}/{row.buffers}", ""),
    ]


def _background(ramp: tuple[int | None, ...], share: float) -> str:
    colour = ramp[min(int(share * len(ramp)), len(ramp) - 1)]
    return "" if colour is None else f"48;5;{colour}"


def _painted(text: str, paint: str, width: int, colour: bool) -> str:
    """``paint`` has a colour for the whole, or one for each character, each ended by an ``m``."""
    blank = padded("", width - width_of(text))
    colours = paint.split("m")[:-1]
    if not colour or not any(colours):
        return text + blank
    parts = [text] if len(colours) == 1 else list(text)
    return "".join(f"\x1b[{c}m{p}\x1b[0m" if c else p for c, p in zip(colours, parts, strict=True)) + blank


@click.command(short_help="Show live metrics of the operators in the running cluster.")
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="Print one table for the time since the start and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two updates.",
)
def top(job: str | None, once: bool, as_json: bool, interval: float) -> None:
    """Show live metrics of the operators of JOB or of all running jobs, and of the processes of the cluster.

    Ctrl-C ends the view, not the jobs.

    'busy' is the share of the busiest subtask, 'blocked' that of the most back-pressured one, 'waiting' that of
    the one that waited most for other tasks of its process. Under 'subtasks' each subtask has one character: its
    busy time in tenths, or '#' if it was mostly back-pressured.
    """
    from sluiceway.runtime.cluster.client import ClusterClient

    meter = Meter()
    with ClusterClient() as client:
        job = job and id_of(client, job)
        if as_json:
            figures = _chosen(client, job)
            click.echo(json.dumps({name: _as_json(m, meter.rows(name, m)) for name, m in figures.items()}))
        elif once or not moves_cursor(sys.stdout):
            for line in _view(client, _chosen(client, job), meter, shows_colours(sys.stdout)):
                click.echo(line)
        else:
            _live(client, job, meter, interval)


def _live(client: ClusterClient, job: str | None, meter: Meter, interval: float) -> None:
    out = sys.stdout
    shown = _chosen(client, job)
    # It would leave the terminal without its cursor and its other screen.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(exit_codes.TERMINATED))
    out.write(_SCREEN)
    try:
        while True:
            # A newline at the end of the last line would scroll the screen.
            lines = _view(client, shown, meter, shows_colours(out))[: get_terminal_size().lines - 1]
            # Overwritten, since a screen that is cleared first flickers.
            out.write(_HOME + "".join(f"{line}{_REST_OF_LINE}\n" for line in lines) + _REST_OF_SCREEN)
            out.flush()
            time.sleep(interval)
            shown = _chosen(client, job)
    except KeyboardInterrupt:
        pass
    finally:
        out.write(_BACK)
        out.flush()


def _chosen(client: ClusterClient, job: str | None) -> dict[str, JobMetrics]:
    if job is None:
        return {name: metrics for name, metrics in client.figures().items() if metrics.status in _LIVING}
    metrics = client.metrics(job)
    if metrics is None:
        raise click.UsageError(f"the cluster has no metrics of job {job!r} any more")
    return {job: metrics}


def _view(client: ClusterClient, figures: Mapping[str, JobMetrics], meter: Meter, colour: bool) -> list[str]:
    from sluiceway.runtime.cluster.client_processes import figures_of

    if not figures:
        return ["no job is running"]
    lines: list[str] = []
    for name, metrics in figures.items():
        restarts = (
            f", {metrics.restarts} restart{'' if metrics.restarts == 1 else 's'}" if metrics.restarts else ""
        )
        lines.append(
            f"{visible_line(name)}: {metrics.status} for {metrics.elapsed_s:.0f} s,"
            f" {metrics.records_in:,} records in, {metrics.records_out:,} out{restarts}"
        )
        lines += [line.rstrip() for line in table(meter.rows(name, metrics), colour)]
        lines.append("")
    return lines + process_table(figures_of(client).figures)


def _as_json(metrics: JobMetrics, rows: list[Row]) -> dict[str, object]:
    return {
        "status": metrics.status,
        "elapsed_s": round(metrics.elapsed_s, 3),
        "records_in": metrics.records_in,
        "records_out": metrics.records_out,
        "restarts": metrics.restarts,
        "operators": [asdict(row) for row in rows],
    }
