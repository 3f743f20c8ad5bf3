"""Flink, by a small Java program: the jars of one version from Maven Central, each checked against its checksum.

They are downloaded by Maven into a directory of the user's choice, and stay there. One JVM makes all runs, so that
all but the first find its code compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

__all__ = ["VERSION", "Flink", "FlinkUnavailableError"]

VERSION = "1.20.3"
_FILES = Path(__file__).parent / "peerfiles"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_DOWNLOAD_S = 600
_OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.util", "java.time")]


class FlinkUnavailableError(Exception):
    """Flink cannot be run here; the text says why."""


class Flink:
    """A JVM that runs the jobs when it is told to.

    Args:
        directory: where the jars and the compiled program are kept.

    Raises:
        FlinkUnavailableError: Java, Maven or the network is not there, or a jar is not the expected one.
    """

    def __init__(self, directory: Path) -> None:
        for program in ("java", "javac"):
            if shutil.which(program) is None:
                raise FlinkUnavailableError(f"{program} is not installed")
        jars = _jars(directory)
        classes = directory / "classes"
        path = f"{jars}/*"
        _done(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(_FILES / "FlinkPeer.java")])
        self._process = subprocess.Popen(
            ["java", *_OPENED, "-cp", os.pathsep.join((path, str(classes))), "FlinkPeer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def check(self, job: str, source: Path, results: Path) -> Sequence[str]:
        """Run ``words`` or ``windows`` and return a line of text for each result."""
        self._tell("check", job, str(source), str(results))
        return results.read_text().splitlines()

    def run(self, job: str, source: Path) -> float:
        """Run it, discard its results, and return the seconds that it took in the local cluster."""
        return self._tell("run", job, str(source))

    def close(self) -> None:
        _stream(self._process.stdin).close()
        self._process.wait()
        _stream(self._process.stdout).close()

    def _tell(self, *words: str) -> float:
        commands = _stream(self._process.stdin)
        commands.write("\t".join(words) + "\n")
        commands.flush()
        answer = _stream(self._process.stdout).readline()
        if not answer:
            raise RuntimeError(f"Flink ended with exit code {self._process.wait()} at {' '.join(words)}")
        return float(answer)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _jars(directory: Path) -> Path:
    """The directory with all jars, downloaded unless they are there."""
    jars = directory / f"flink-{VERSION}"
    expected = dict(reversed(line.split()) for line in (_FILES / "jars.sha256").read_text().splitlines())
    if not jars.is_dir():
        if shutil.which("mvn") is None:
            raise FlinkUnavailableError(f"{jars} is not there, and mvn is not installed to download it")
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f"flink-{VERSION}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        options = [f"-Dmaven.repo.local={directory / 'maven'}", f"-DoutputDirectory={partial.absolute()}"]
        _done(["mvn", "-q", "-B", "-f", str(_FILES / "pom.xml"), _PLUGIN, *options])
        _verify(partial, expected)
        partial.rename(jars)
    _verify(jars, expected)
    return jars


def _verify(jars: Path, expected: dict[str, str]) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.glob("*.jar")}
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if wrong:
        raise FlinkUnavailableError(f"jars in {jars} are not those of jars.sha256: {', '.join(wrong)}")


def _done(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S)
    except subprocess.TimeoutExpired:
        raise FlinkUnavailableError(f"{command[0]} took longer than {_DOWNLOAD_S} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise FlinkUnavailableError(f"{command[0]} failed: {said[0]}")
