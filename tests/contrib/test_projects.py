"""What third parties do: a project is built into a wheel, installed, found, and passes its own tests.

The projects are those of contrib/ and what ``sluiceway new`` writes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENT_S, until

from sluiceway.templates import instantiate
from sluiceway.testing.kafka import KafkaCluster

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
CONTRIB = sorted(p.parent for p in ROOT.glob("contrib/*/pyproject.toml"))


class Project:
    """A project's source tree, and a directory that its wheel was installed into."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.target = target
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICEWAY_", "PYTEST_", "PYTHON"))}
        self.environment = kept | {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}

    def call(self, *command: str, cwd: Path | None = None) -> str:
        result = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=cwd or self.source,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}"
        return result.stdout

    def install(self) -> None:
        wheels = self.target.with_name("wheel")
        self.call("build", "--wheel", "--no-isolation", "--outdir", str(wheels), ".")
        (wheel,) = wheels.glob("*.whl")
        self.call("pip", "install", "--quiet", "--no-deps", "--target", str(self.target), str(wheel))

    def run_its_tests(self, directory: Path) -> None:
        """From elsewhere, where the package is found and not the tree; then as an owner does, twice."""
        settings = ["-c", str(self.source / "pyproject.toml"), "--rootdir", str(directory)]
        base = ["-p", "no:cacheprovider", "--basetemp", str(directory / "base")]
        printed = self.call("pytest", *settings, *base, str(self.source / "tests"), cwd=directory)
        assert " passed" in printed
        assert " skipped" not in printed, printed
        for _ in range(2):  # what the first run leaves, such as checkpoints, must not be in the way
            assert " passed" in self.call("pytest", *base, "tests")

    def offered(self, name: str) -> set[str]:
        """The kinds of what this project's distribution offers under a name."""
        listed: dict[str, list[dict[str, str]]] = json.loads(self.call("sluiceway", "plugins", "list", "--json"))
        assert listed["problems"] == []
        return {
            o["kind"] for o in listed["offers"] if (o["name"], o["distribution"]) == (name, f"sluiceway-{name}")
        }


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[Path], Project]:
    def install(source: Path) -> Project:
        project = Project(source, tmp_path / "installed")
        project.install()
        return project

    return install


def test_contrib_has_projects() -> None:
    assert [p.name for p in CONTRIB] == ["sluiceway-sqlite"]


@pytest.mark.parametrize("source", CONTRIB, ids=lambda p: p.name)
def test_a_project_of_contrib(source: Path, installed: Callable[[Path], Project], tmp_path: Path) -> None:
    # A copy, as a build and Hypothesis write beside the sources, which other tests may be reading.
    written = shutil.ignore_patterns("build", "*.egg-info", ".*")
    copy = shutil.copytree(source, tmp_path / source.name, ignore=written)
    project = installed(copy)
    name = source.name.removeprefix("sluiceway-")
    assert project.offered(name) == {"connector", "state backend"}
    project.run_its_tests(tmp_path)


def test_a_plugin_from_the_template(installed: Callable[[Path], Project], tmp_path: Path) -> None:
    instantiate("plugin", "click-stream", tmp_path / "new")
    project = installed(tmp_path / "new")
    assert project.offered("click-stream") == {"connector"}
    project.run_its_tests(tmp_path)


def test_a_pipeline_from_the_template(installed: Callable[[Path], Project], tmp_path: Path) -> None:
    instantiate("pipeline", "click-counts", tmp_path / "new")
    project = installed(tmp_path / "new")
    assert "('/prices', 2)" in project.call("sluiceway", "run", "click_counts.pipeline:flow")
    project.run_its_tests(tmp_path)


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
def test_a_pipeline_for_kafka_from_the_template(
    installed: Callable[[Path], Project], kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """The commands of its README, with a broker of the tests; the pipeline is killed, and goes on."""
    instantiate("pipeline_kafka", "click-counts", tmp_path / "new")
    project = installed(tmp_path / "new")
    commands = re.findall(r"^\$ (.*)$", (project.source / "README.md").read_text(), re.M)
    produce, run, check = (tuple(command.removeprefix("python -m ").split()) for command in commands[-3:])
    assert produce == ("click_counts.sample", "produce")
    project.environment["KAFKA_BOOTSTRAP_SERVERS"] = kafka_broker.bootstrap_servers

    for runs in (1, 2):
        project.call(*produce)
        with open(tmp_path / "log", "a") as log:
            pipeline = subprocess.Popen(
                [sys.executable, "-m", *run], cwd=project.source, env=project.environment, stdout=log, stderr=log
            )
        try:
            until(lambda running=pipeline: running.poll() is not None or _missing(project, *check) == "0")
            assert pipeline.poll() is None, (tmp_path / "log").read_text()
        finally:
            pipeline.kill()
            pipeline.wait()
        assert f"views {runs * 10_000}, counts" in project.call(*check)
    assert "resuming 'click-counts' from checkpoint" in (tmp_path / "log").read_text()
    project.run_its_tests(tmp_path)


def _missing(project: Project, *check: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *check],
        cwd=project.source,
        env=project.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"missing (\d+), doubled 0, wrong 0", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]
