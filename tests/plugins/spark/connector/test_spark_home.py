"""SPARK_HOME from which the Python processes of local sessions start."""

from __future__ import annotations

import site
import sys
from pathlib import Path

import pytest

from sluiceway_spark.session import spark_home
from sluiceway_spark.session.spark_home import quick_home

HAS = ("bin", "jars", "python", "sql")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages of PySpark and py4j, and a cache of this test's own."""
    packages = tmp_path / "site-packages"
    for package in ("pyspark", "py4j"):
        for name in HAS if package == "pyspark" else ():
            (packages / package / name).mkdir(parents=True)
        (packages / package).mkdir(exist_ok=True)
        (packages / package / "__init__.py").touch()

    class Spec:
        def __init__(self, name: str) -> None:
            self.origin = str(packages / name / "__init__.py")

    monkeypatch.setattr(spark_home, "find_spec", Spec)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return packages


def test_it_has_what_spark_starts_from_and_no_archives(installed: Path, tmp_path: Path) -> None:
    home = quick_home()
    assert home is not None
    assert sorted(entry.name for entry in Path(home).iterdir()) == ["bin", "jars"]
    assert Path(home, "jars").resolve() == installed / "pyspark" / "jars"
    assert Path(home).is_relative_to(tmp_path / "cache")


def test_what_is_there_later_is_found_and_what_has_gone_is_not(installed: Path) -> None:
    quick_home()
    (installed / "pyspark" / "conf").mkdir()
    (installed / "pyspark" / "bin").rmdir()
    home = quick_home()
    assert home is not None
    assert sorted(entry.name for entry in Path(home).iterdir()) == ["conf", "jars"]


@pytest.mark.parametrize("name", ["SPARK_HOME", "PYSPARK_PYTHON"])
def test_what_the_user_says_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/opt/other")
    assert quick_home() is None


def test_the_same_python_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert quick_home() is not None


def test_a_pyspark_that_other_processes_do_not_find_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/nowhere"])
    assert quick_home() is None


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert quick_home() is None
