"""Versions of PySpark that each way of running a job needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import ConfigurationError, GraphError, MissingExtraError
from sluiceway_spark.session import pyspark_version
from sluiceway_spark.session.configuration import need_spark
from sluiceway_spark.session.pyspark_version import LOWEST, MICRO_BATCHES, installed, too_old

FLOW = """
import sluiceway as sw

flow = sw.Pipeline("flow")
flow.generate(rate=10).print()
"""


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that has another version of PySpark seem to be installed."""
    return lambda version: monkeypatch.setattr(pyspark_version, "installed", lambda: version)


def findings(*, bounded: bool = True, **options: Any) -> list[str]:
    flow = sw.Pipeline("flow")
    (flow.from_sequence(0, 9) if bounded else flow.generate(rate=10)).print()
    return [f.message for f in flow.check(engine="spark", **options) if f.level.value == "error"]


@pytest.mark.parametrize(
    ("version", "needed", "says"),
    [
        ("4.1.4", (4, 2), "PySpark 4.2 or later is needed, and 4.1.4 is installed"),
        ("3.5.9", (4, 0), "PySpark 4.0 or later is needed, and 3.5.9 is installed"),
        ("4.2.0.dev1", (4, 2), None),
        ("4.10.0", (4, 2), None),
        ("", (4, 2), None),
    ],
)
def test_versions_are_compared(older: Any, version: str, needed: Any, says: str | None) -> None:
    older(version)
    assert too_old(needed) == says


@pytest.mark.parametrize(
    "options", [{"bounded": False}, {"checkpoints": "kept"}, {"bounded": False, "checkpoints": "kept"}]
)
def test_micro_batches_need_a_version_and_the_others_do_not(older: Any, options: dict[str, Any]) -> None:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    older("4.1.4")
    told = findings(**options)
    assert told
    assert all(
        "engine 'spark' in micro-batches does not have" in each
        and "PySpark 4.2 or later is needed, and 4.1.4 is installed; install a later one, or run it with --hosted"
        in each
        for each in told
    )
    assert not findings()
    assert not findings(bounded=False, hosted=True)
    older("4.2.0")
    assert not [each for each in findings(**options) if "PySpark" in each]


def test_a_run_is_refused_before_spark_starts(older: Any) -> None:
    older("4.1.4")
    flow = sw.Pipeline("flow")
    flow.generate(rate=10).print()
    with pytest.raises(GraphError, match=r"micro-batches .* PySpark 4\.2 or later is needed, and 4\.1\.4"):
        flow.run(engine="spark")


def test_what_is_older_than_anything_supported_is_refused(older: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    older("3.5.9")
    with pytest.raises(MissingExtraError, match=r"PySpark 4\.0 or later is needed, and 3\.5\.9 .*: pip install"):
        need_spark()


def test_the_format_needs_a_version(older: Any) -> None:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    from sluiceway_spark.datasource.data_source import SluicewayDataSource, register

    older("4.0.5")
    with pytest.raises(
        ConfigurationError, match=r"^format 'sluiceway': PySpark 4\.1 or later is needed, and 4\.0"
    ):
        register(SimpleNamespace(dataSource=None))
    older("4.1.4")
    with pytest.raises(ConfigurationError, match=r"^format 'sluiceway' to read streams: PySpark 4\.2 or later"):
        SluicewayDataSource({}).streamReader(None)


@pytest.mark.spark
@pytest.mark.pysparks
def test_check_tells_what_the_installed_version_has(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    assert installed() == pyspark.__version__
    assert too_old(LOWEST) is None
    (tmp_path / "flow.py").write_text(FLOW)
    done = subprocess.run(
        [sys.executable, "-m", "sluiceway", "check", "--engine", "spark", "flow.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
    )
    if too_old(MICRO_BATCHES) is None:
        assert done.returncode == 0, done.stdout
        assert "on engine 'spark' in micro-batches: " in done.stdout
    else:
        assert done.returncode == 2, done.stdout
        assert f"PySpark 4.2 or later is needed, and {pyspark.__version__} is installed" in done.stdout
