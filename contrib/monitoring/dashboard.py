"""``python contrib/monitoring/dashboard.py``: writes dashboard.json, a dashboard for Grafana."""

import json
from itertools import count
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("dashboard.json")
WIDTH = 24
HEIGHT = 8

JOB = 'job=~"$job"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def per_task(metric: str, by: str = "max") -> str:
    """Seconds per second, of the subtask with the largest share."""
    return f"{by} by (job, task) (rate({metric}{{{JOB}}}[$__rate_interval]))"


def lost(metric: str) -> str:
    """Records in the range that is shown, by operator."""
    return f"sum by (job, operator) (increase({metric}{{{JOB}}}[$__range]))"


BUSY, BLOCKED, IDLE = (f"sluiceway_task_{name}_seconds_total" for name in ("busy", "backpressured", "idle"))
WAITING = " + ".join(f"rate({metric}{{{JOB}}}[$__rate_interval])" for metric in (BUSY, BLOCKED, IDLE))
TASK, OPERATOR = "{{job}}: {{task}}", "{{job}}: {{operator}}"

# Of each row: of each panel its title, what it tells, its unit, and its queries with their legends.
ROWS: dict[str, list[tuple[str, str, str, dict[str, str]]]] = {
    "Jobs": [
        ("Status", "Status of each job.", "none", {"{{job}} {{status}}": f"sluiceway_job_status{{{JOB}}} == 1"}),
        ("Uptime", "Time since the job started.", "s", {"{{job}}": f"sluiceway_job_uptime_seconds{{{JOB}}}"}),
        (
            "Restarts",
            "Restarts after failures, in the range that is shown.",
            "none",
            {"{{job}}": f"sum by (job) (increase(sluiceway_job_restarts_total{{{JOB}}}[$__range]))"},
        ),
    ],
    "Throughput": [
        (
            "Records of jobs",
            "Records that sources read and sinks write, per second.",
            "cps",
            {
                f"{{{{job}}}} {way}": f"rate(sluiceway_job_records_{way}_total{{{JOB}}}[$__rate_interval])"
                for way in ("in", "out")
            },
        ),
        (
            "Records of tasks",
            "Records that the subtasks of each task read, per second.",
            "cps",
            {TASK: per_task("sluiceway_task_records_in_total", "sum")},
        ),
        (
            "Bytes between workers",
            "Bytes of records that tasks write for other workers, per second.",
            "Bps",
            {TASK: per_task("sluiceway_task_bytes_out_total", "sum")},
        ),
    ],
    "Where the time goes": [
        (
            "Busy",
            "Share of time at work: the first busy task is the slow one.",
            "percentunit",
            {TASK: per_task(BUSY)},
        ),
        (
            "Back-pressured",
            "Share of time at rest because the output was blocked: a task after this one is slow.",
            "percentunit",
            {TASK: per_task(BLOCKED)},
        ),
        (
            "Waiting",
            "Share of time in which another task of the process ran: more workers would help.",
            "percentunit",
            {TASK: f"max by (job, task) (clamp_min(1 - ({WAITING}), 0))"},
        ),
        ("Idle", "Share of time without input.", "percentunit", {TASK: per_task(IDLE, "min")}),
        (
            "Queued",
            "Batches that have come in and are not read, and those that wait for credit.",
            "none",
            {
                f"{TASK} {name}": f"sum by (job, task) (sluiceway_task_{name}{{{JOB}}})"
                for name in ("queued", "backlog")
            },
        ),
        (
            "Network buffers in use",
            "Share of the buffers of the outputs.",
            "percentunit",
            {
                TASK: f"sum by (job, task) (sluiceway_task_buffers_in_use{{{JOB}}}) "
                f"/ (sum by (job, task) (sluiceway_task_buffers{{{JOB}}}) > 0)"
            },
        ),
    ],
    "Event time": [
        (
            "Watermark lag",
            "Time that the output watermark of the last subtask is behind the clock.",
            "s",
            {TASK: f"max by (job, task) (sluiceway_task_watermark_lag_seconds{{{JOB}}})"},
        ),
        (
            "Latency",
            "Time of latency markers from the sources to a sink; needs latency-interval.",
            "s",
            {f"{OPERATOR} {{{{quantile}}}}": f"sluiceway_latency_seconds{{{JOB}}}"},
        ),
    ],
    "Checkpoints": [
        (
            "Ended",
            "Checkpoints and savepoints that were completed or have failed, per minute.",
            "none",
            {"{{job}} {{status}}": f"60 * rate(sluiceway_job_checkpoints_total{{{JOB}}}[$__rate_interval])"},
        ),
        (
            "Age of the last one",
            "A failure now would repeat this much work. The interval is how old it should be at most.",
            "s",
            {
                "{{job}}": f"time() - sluiceway_job_last_checkpoint_completed_timestamp_seconds{{{JOB}}}",
                "{{job}} interval": f"sluiceway_job_checkpoint_interval_seconds{{{JOB}}}",
            },
        ),
        (
            "Duration of the last one",
            "Time from its trigger to its completion.",
            "s",
            {"{{job}}": f"sluiceway_job_last_checkpoint_duration_seconds{{{JOB}}}"},
        ),
        (
            "Size of the last one",
            "Serialized state.",
            "bytes",
            {"{{job}}": f"sluiceway_job_last_checkpoint_size_bytes{{{JOB}}}"},
        ),
    ],
    "Records that were not processed": [
        (
            "Late",
            "Dropped behind the watermark.",
            "none",
            {OPERATOR: lost("sluiceway_operator_late_records_dropped_total")},
        ),
        (
            "Dead letters",
            "Put aside: sluiceway dlq shows them.",
            "none",
            {OPERATOR: lost("sluiceway_operator_dead_letters_total")},
        ),
        (
            "Unreadable",
            "Skipped by a source.",
            "none",
            {OPERATOR: lost("sluiceway_operator_unreadable_records_total")},
        ),
    ],
    "Processes": [
        (
            "Memory",
            "Memory of the process with the endpoint, and of workers.",
            "bytes",
            {
                "{{instance}}": 'process_resident_memory_bytes{job="sluiceway"}',
                "{{job}} {{worker}}": f"sluiceway_worker_resident_memory_bytes{{{JOB}}}",
            },
        ),
        (
            "CPU",
            "Processors in use.",
            "none",
            {
                "{{instance}}": 'rate(process_cpu_seconds_total{job="sluiceway"}[$__rate_interval])',
                "{{job}} {{worker}}": f"rate(sluiceway_worker_cpu_seconds_total{{{JOB}}}[$__rate_interval])",
            },
        ),
        ("Open files", "Descriptors.", "none", {"{{instance}}": 'process_open_fds{job="sluiceway"}'}),
    ],
}


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "title": "Sluiceway",
        "uid": "sluiceway-jobs",
        "description": "Jobs of Sluiceway, from the metrics reporter prometheus.",
        "tags": ["sluiceway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _job()]},
        "annotations": {"list": [_restarts()]},
        "panels": list(_panels()),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _job() -> dict[str, Any]:
    query = "label_values(sluiceway_job_status, job)"
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "job"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _restarts() -> dict[str, Any]:
    return {
        "name": "Restarts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"changes(sluiceway_job_restarts_total{{{JOB}}}[1m]) > 0",
        "titleFormat": "restart of {{job}}",
    }


def _panels() -> Any:
    ids = count(1)
    y = 0
    for title, panels in ROWS.items():
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": next(ids), "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        y += 1
        per_line = min(len(panels), 3) if len(panels) != 4 else 2
        width = WIDTH // per_line
        for number, (name, about, unit, queries) in enumerate(panels):
            place = {"x": number % per_line * width, "y": y, "w": width, "h": HEIGHT}
            yield _panel(next(ids), name, about, unit, queries, place)
            if number % per_line == per_line - 1 or number == len(panels) - 1:
                y += HEIGHT


def _panel(
    number: int, title: str, about: str, unit: str, queries: dict[str, str], place: dict[str, int]
) -> dict[str, Any]:
    counted = title in ("Status", "Restarts", "Late", "Dead letters", "Unreadable")
    kind = "stat" if counted else "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + at),
            "datasource": SOURCE,
            "expr": query,
            "legendFormat": legend,
            "range": not counted,
            "instant": counted,
        }
        for at, (legend, query) in enumerate(queries.items())
    ]
    defaults: dict[str, Any] = {"unit": unit, "min": 0}
    if unit == "percentunit":
        defaults["max"] = 1
    panel: dict[str, Any] = {
        "id": number,
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }
    if counted:
        red = [{"color": "green", "value": None}, {"color": "red", "value": 0.5}]
        if title == "Status":
            panel["options"] = {
                "textMode": "name",
                "colorMode": "none",
                "reduceOptions": {"calcs": ["lastNotNull"]},
            }
        else:
            defaults["decimals"] = 0
            defaults["thresholds"] = {"mode": "absolute", "steps": red}
            panel["options"] = {"textMode": "value_and_name", "reduceOptions": {"calcs": ["lastNotNull"]}}
    else:
        panel["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return panel


def text() -> str:
    """Return the text of the dashboard file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
