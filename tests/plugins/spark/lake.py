"""Jars of Delta and Iceberg for the installed PySpark, from Maven Central, and sessions that have them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

DELTA: Final = "4.4.0"
ICEBERG: Final = {"4.0": "1.11.0", "4.1": "1.12.0"}
JARS: Final = {
    ("delta", minor): [f"io.delta:delta-spark_{minor}_2.13:{DELTA}", f"io.delta:delta-storage:{DELTA}"]
    for minor in ("4.0", "4.1", "4.2")
} | {
    ("iceberg", minor): [f"org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:{version}"]
    for minor, version in ICEBERG.items()
}
CACHE: Final = "SLUICEWAY_TEST_JARS"
"""Variable that names a directory in which fetched jars stay."""

_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


def jars(form: str, directory: Path) -> list[str]:
    """Return the paths of the jars; skip the test if none are for this PySpark, or they cannot be fetched."""
    import pyspark

    minor = ".".join(pyspark.__version__.split(".")[:2])
    wanted = JARS.get((form, minor))
    if wanted is None:
        versions = ", ".join(version for found, version in JARS if found == form)
        pytest.skip(f"no release of {form} is for PySpark {minor}; there are some for {versions}")
    directory = Path(os.environ.get(CACHE, directory))
    found = []
    for artifact in wanted:
        _, name, version = artifact.split(":")
        path = directory / f"{name}-{version}.jar"
        if not path.exists():
            if shutil.which("mvn") is None:
                pytest.skip(f"needs mvn, by which the jars of {form} are fetched")
            options = [f"-Dartifact={artifact}", f"-DoutputDirectory={directory}", "-Dtransitive=false"]
            done = subprocess.run(["mvn", "-q", "-B", _COPY, *options], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"Maven does not fetch {artifact}: {(done.stdout + done.stderr).strip()[:300]}")
        found.append(str(path))
    return found


@contextmanager
def own_jvm() -> Iterator[None]:
    """Start a JVM for the session that is made meanwhile, and end it afterwards.

    A JVM takes jars, and the settings of its first session, when it starts, and outlives its sessions. One that is
    there before has no session, or the test fails.
    """
    _end_jvm()
    try:
        yield
    finally:
        _end_jvm()


def _end_jvm() -> None:
    from patience import PATIENT_S
    from pyspark import SparkContext

    context: Any = SparkContext
    assert context._active_spark_context is None, "another test's session is there"
    gateway, context._gateway, context._jvm = context._gateway, None, None
    if gateway is not None:
        gateway.shutdown()  # both sides' connections
        gateway.proc.stdin.close()  # at whose end the JVM exits
        gateway.proc.wait(PATIENT_S)


def conf(form: str, jars: list[str], directory: Path) -> dict[str, Any]:
    """Return the settings of a session with a catalog of this format in a directory."""
    settings: dict[str, Any] = {
        "spark.jars": ",".join(jars),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    if form == "delta":
        return settings | {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": 1,
        }
    return settings | {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(directory / "lake"),
    }
