"""contrib/monitoring, with promtool and a real Prometheus that scrapes jobs, some with planted faults."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from patience import PATIENT_S, until

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "contrib/monitoring"
RULES = (MONITORING / "alerts.yml").read_text()
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
METRICS = set(re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.M))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
ALERTS = re.findall(r"- alert: (\w+)", RULES)

no_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)
no_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or sys.platform != "linux",
    reason="needs Prometheus on Linux: apt-get install prometheus",
)


def named(expression: str) -> set[str]:
    """The metrics in an expression of Prometheus' language."""
    return set(re.findall(r"\b(?:sluiceway|process)_\w+", expression))


def promtool(*arguments: str) -> None:
    ran = subprocess.run(["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# ---- the files by themselves --------------------------------------------------------------------------------


def test_the_dashboard_is_what_its_program_writes() -> None:
    command = [sys.executable, "-c", "import dashboard; print(dashboard.text(), end='')"]
    ran = subprocess.run(command, cwd=MONITORING, capture_output=True, text=True, check=True)
    assert ran.stdout == (MONITORING / "dashboard.json").read_text(), "run: python contrib/monitoring/dashboard.py"
    shutil.rmtree(MONITORING / "__pycache__", ignore_errors=True)


def test_grafana_can_import_the_dashboard() -> None:
    """Its structure; Grafana itself is not started."""
    assert DASHBOARD["title"]
    assert re.fullmatch(r"[\w-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD["schemaVersion"] >= 36
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert all(0 <= x < 24 for x, _ in cells), panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["type"] in ("timeseries", "stat")
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["legendFormat"]
            used = {name for name in re.findall(r"\$\{?(\w+)", target["expr"]) if not name.startswith("__")}
            assert used <= variables


def test_they_name_metrics_that_exist() -> None:
    for title, query in QUERIES:
        assert named(query), title
        assert named(query) <= METRICS, title
    assert named(RULES) - {"sluiceway_dlq"} <= METRICS
    job = next(v for v in DASHBOARD["templating"]["list"] if v["name"] == "job")
    assert named(job["definition"]) <= METRICS


def test_each_rule_says_what_to_do_and_has_a_test() -> None:
    tests = (MONITORING / "alerts-test.yml").read_text()
    for name, body in re.findall(r"- alert: (\w+)\n((?:(?!- alert).*\n?)+)", RULES):
        assert re.search(r"severity: (critical|warning|info)", body), name
        assert re.search(r'summary: ".+: [a-z].+\."', body), f"{name}: what is, a colon, what to do"
        assert "description: >-" in body, name
        raised = rf"alertname: {name}\n\s+eval_time: \d+m\n\s+exp_alerts:\n\s+- exp_labels"
        assert re.search(raised, tests), f"{name}: no test raises it"


@no_promtool
def test_promtool() -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "alerts-test.yml")


# ---- with a real Prometheus ---------------------------------------------------------------------------------

WELL = """
import time
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

times = sw.WatermarkStrategy.for_bounded_out_of_orderness("0s").with_timestamp_assigner(
    lambda n: int(time.time() * 1000)
)
flow = sw.Pipeline("well")
read = flow.generate(rate=200, watermark_strategy=times)
read.key_by(lambda n: n % 10).count().sink(DiscardSink())
"""
ILL = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSource


class Fails(sw.MapFunction[int, int]):
    def open(self, context):
        self.left = 150

    def map(self, value):
        self.left -= 1
        if not self.left:
            raise RuntimeError("planted")
        return value


def odd(value):
    if value % 100 == 7:
        raise ValueError("planted")
    return value


times = sw.WatermarkStrategy.for_bounded_out_of_orderness("0s").with_timestamp_assigner(
    lambda n: n * 10 if n % 50 else 0
)
flow = sw.Pipeline("ill")
read = flow.generate(rate=400, watermark_strategy=times).map(Fails()).map(odd).name("odd").on_error("skip")
sums = read.key_by(lambda n: n % 10).window(TumblingEventTimeWindows.of("1s")).reduce(lambda a, b: a + b)
sums.name("sums").sink(DiscardSink())
flow.source(FilesSource.json_lines("lines.jsonl", on_error="skip")).sink(DiscardSink())
"""
STUCK = """
import time
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

BEGAN = int(time.time() * 1000) - 100_000


def slow(n):
    time.sleep(0.3)
    return n


times = sw.WatermarkStrategy.for_bounded_out_of_orderness("0s").with_timestamp_assigner(lambda n: BEGAN)
flow = sw.Pipeline("stuck")
flow.generate(watermark_strategy=times).rebalance().map(slow).slot_sharing_group("slow").sink(DiscardSink())
"""
RUNS = {
    "well": (WELL, ["--checkpoint-interval", "2s"]),
    "ill": (
        ILL,
        [
            *(
                "--workers",
                "2",
                "--parallelism",
                "2",
                "--checkpoint-interval",
                "100ms",
                "--latency-interval",
                "50ms",
            ),
            *("--restart", "fixed-delay:1000000:10ms", "--checkpoint-tolerated-failures", "1000000"),
        ],
    ),
    "stuck": (
        STUCK,
        [
            *("--workers", "2", "--parallelism", "1", "--batch-size", "1"),
            *("--checkpoint-interval", "300ms", "--checkpoint-timeout", "200ms"),
            *("--checkpoint-tolerated-failures", "1000000"),
        ],
    ),
}
EXPECTED: dict[str, set[str]] = {
    "well": set(),
    "ill": {
        "SluicewayJobRestarting",
        "SluicewayJobKeepsRestarting",
        "SluicewayDeadLetters",
        "SluicewayLateRecords",
    },
    "stuck": {
        "SluicewayCheckpointsFailing",
        "SluicewayCheckpointTooOld",
        "SluicewayWatermarkLagRising",
        "SluicewayBackpressure",
    },
    "sluiceway": {"SluicewayEndpointDown"},
}


def hurried(rules: str) -> str:
    """The rules with seconds in place of minutes, since a test cannot wait for them."""
    rules = re.sub(r"\[(\d+)m\]", r"[\1s]", rules).replace("offset 10m", "offset 10s")
    rules = re.sub(r"for: \d+m", "for: 1s", rules)
    assert rules.count(", 60)") == 2
    return rules.replace(", 60)", ", 1)")


@dataclass
class Watched:
    """A Prometheus with its jobs."""

    url: str

    def ask(self, path: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}", timeout=PATIENT_S) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask(f"query?query={quote(expression)}")["result"]
        return found

    def alerts(self) -> set[tuple[str, str]]:
        """Job and name of each alert that is firing."""
        told = self.ask("alerts")["alerts"]
        return {(a["labels"]["job"], a["labels"]["alertname"]) for a in told if a["state"] == "firing"}


def ended(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENT_S)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    place = tmp_path_factory.mktemp("watched")
    (place / "lines.jsonl").write_text('{"a": 1}\nno json\n')
    (place / "alerts.yml").write_text(hurried(RULES))

    def port() -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            found: int = free.getsockname()[1]
            return found

    with ExitStack() as running, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        targets = [f"127.0.0.1:{refusing.getsockname()[1]}"]
        for name, (program, options) in RUNS.items():
            (place / f"{name}.py").write_text(program)
            own = port()
            targets.append(f"127.0.0.1:{own}")
            command = [sys.executable, "-m", "sluiceway", "run", "--quiet", "--metrics", "prometheus"]
            command += ["--metrics-interval", "200ms", *options, f"{name}.py"]
            with (place / f"{name}.log").open("wb") as log:
                job = subprocess.Popen(
                    command,
                    cwd=place,
                    env={**os.environ, "SLUICEWAY_PROMETHEUS_PORT": str(own)},
                    stdout=log,
                    stderr=log,
                )
            running.callback(ended, job)
        config = (MONITORING / "prometheus.yml").read_text().replace("15s", "500ms")
        (place / "prometheus.yml").write_text(config.replace('["127.0.0.1:9249"]', json.dumps(targets)))
        own = port()
        with (place / "prometheus.log").open("wb") as log:
            server = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={place / 'prometheus.yml'}",
                    f"--storage.tsdb.path={place / 'data'}",
                    f"--web.listen-address=127.0.0.1:{own}",
                ],
                stdout=log,
                stderr=log,
            )
        running.callback(ended, server)
        found = Watched(f"http://127.0.0.1:{own}")

        def ready() -> bool:
            assert server.poll() is None, (place / "prometheus.log").read_text()
            try:
                return len(found.query("sluiceway_job_uptime_seconds > 0")) == len(RUNS)
            except OSError:
                return False

        until(ready)
        yield found


def known(expression: str) -> str:
    """A query of the dashboard, as Grafana sends it."""
    for variable, value in (("$job", ".+"), ("$__rate_interval", "5s"), ("$__range", "1m")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


@no_prometheus
@pytest.mark.slow
def test_each_query_of_the_dashboard_finds_something(watched: Watched) -> None:
    missing = list(QUERIES)

    def all_found() -> bool:
        missing[:] = [(title, query) for title, query in missing if not watched.query(known(query))]
        return not missing

    until(all_found)


@no_prometheus
@pytest.mark.slow
def test_planted_faults_raise_their_alerts_and_a_job_that_is_well_raises_none(watched: Watched) -> None:
    expected = {(job, alert) for job, alerts in EXPECTED.items() for alert in alerts}
    assert {alert for _, alert in expected} == set(ALERTS), "each rule is tried"
    seen: set[tuple[str, str]] = set()

    def all_seen() -> bool:
        seen.update(watched.alerts())
        long_enough = watched.query('sluiceway_job_uptime_seconds{job="well"} > 15')
        return bool(long_enough) and expected <= seen

    until(all_seen)
    assert not [alert for job, alert in seen if job == "well"]
    health = [rule["health"] for group in watched.ask("rules")["groups"] for rule in group["rules"]]
    assert health == ["ok"] * len(ALERTS)
