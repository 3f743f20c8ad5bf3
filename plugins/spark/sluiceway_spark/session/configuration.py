"""Spark sessions: given, or made from configuration."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway_spark.session.connect import need_connect
from sluiceway_spark.session.java_home import find_java
from sluiceway_spark.session.pyspark_version import LOWEST, too_old
from sluiceway_spark.session.spark_home import quick_home
from sluiceway_spark.session.terminal_output import launch_for_terminal

__all__ = ["SessionConf", "full_text", "need_spark", "other_python", "said"]

_LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_MISMATCH: Final = re.compile(r"PYTHON_VERSION_MISMATCH\D*?different version[^\d]*(\d+(?:\.\d+)*)")
_MISSING: Final = re.compile(r"No module named '?([\w.]+)'?")
_ALWAYS: Final = {
    "spark.ui.showConsoleProgress": "false",
    # The default from Spark 4.3. In 4.0 it is 256m, whose buffers in two tasks fill a driver of 1 GB, which dies.
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
}


def need_spark() -> None:
    """Raise MissingExtraError where PySpark or what it needs is missing, or PySpark is too old."""
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise MissingExtraError(f"Spark needs {module}: {install_command('sluiceway[spark]')}")
    if (older := too_old(LOWEST)) is not None:
        raise MissingExtraError(f"{older}: {install_command('sluiceway[spark]')}")


@dataclass(frozen=True)
class SessionConf:
    """Configuration of a session; opens nothing by itself.

    Attributes:
        master: Spark's master, such as ``local[*]`` or ``spark://host:7077``; None: that of ``conf``, of Spark's
            own configuration, else ``local[*]``.
        remote: URL of a Spark Connect server, in place of a master; ``local[2]`` starts one on this machine.
        conf: Spark's own settings, ``spark.*``.
    """

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, master: str | None, remote: str | None, conf: Mapping[str, Any] | None) -> SessionConf:
        """Checked.

        Raises:
            ConfigurationError: they cannot be used, or do not go together.
        """
        if master is not None and remote is not None:
            raise ConfigurationError("master= and remote= do not go together: a Connect server has its own master")
        conf = {} if conf is None else conf
        if odd := [name for name in conf if not (isinstance(name, str) and name.startswith("spark."))]:
            raise ConfigurationError(f"conf=: {odd[0]!r} is no setting of Spark's, which begin with 'spark.'")
        texts = {name: _text(value) for name, value in conf.items()}
        return cls(master, remote, texts)

    def session(self, least_cores: int = 1, name: str = "sluiceway") -> Any:
        """Return the session of this process: the active one, else one made from this, which lasts as long.

        Takes seconds. Any thread.

        Args:
            least_cores: how many tasks are to run at a time, where this machine is all there is.
            name: of the application, where ``spark.app.name`` is not configured.

        Raises:
            MissingExtraError: PySpark or Java is missing.
            ConnectorError: Spark does not start.
        """
        need_spark()
        from pyspark.sql import SparkSession

        if self.remote is None:
            try:
                return SparkSession.active()
            except Exception:  # which class it is depends on whether there is a JVM yet
                pass
        try:
            builder: Any = SparkSession.builder.appName(configured("spark.app.name", "--name") or name)
            if self.remote is not None:
                need_connect(self.remote)
                is_local = self.remote.startswith("local")
                settings = {**(_LOOPBACK if is_local else {}), **self.conf}
                for name, value in settings.items():
                    builder = builder.config(name, value)
                with _environment(is_local=True) if is_local else nullcontext():
                    return builder.remote(self.remote).getOrCreate()
            master = self.master or self.conf.get("spark.master") or configured_master()
            master = master or f"local[{max(least_cores, os.cpu_count() or 1)}]"
            usual = {**_ALWAYS, **(_LOOPBACK if master.startswith("local") else {})}
            settings = {key: value for key, value in usual.items() if configured(key) is None} | dict(self.conf)
            for name, value in settings.items():
                builder = builder.config(name, value)
            quick = re.match(r"local(\[|$)", master) is not None
            with _environment(is_local=master.startswith("local"), quick=quick), _own_interrupts():
                launch_for_terminal({**settings, "spark.master": master})
                session = builder.master(master).getOrCreate()
            atexit.register(_stop, session)  # else its end is told of as a failure
            return session
        except (MissingExtraError, ConfigurationError, ConnectorError):
            raise
        except AttributeError as error:  # of PySpark, which lets go of a context before it forgets its session
            raise ConnectorError("no Spark session: that of this process was stopped at this moment") from error
        except Exception as error:
            raise ConnectorError(f"no Spark session: {said(error)}") from error


def configured_master() -> str | None:
    """Return the master that the environment or Spark's configuration names; None: neither does."""
    return os.environ.get("MASTER") or configured("spark.master", "--master")


def configured(name: str, flag: str = "") -> str | None:
    """Return a setting from the arguments of Spark's launcher or ``spark-defaults.conf``; None: neither has it.

    Args:
        name: of the setting, ``spark.*``.
        flag: of the launcher, which says the same.
    """
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for given, value in pairwise(arguments):
        if flag and given == flag:
            return value
        if given in ("--conf", "-c") and value.startswith(f"{name}="):
            return value.partition("=")[2]
    home = os.environ.get("SPARK_HOME") or Path(str(find_spec("pyspark").origin)).parent  # type: ignore[union-attr]
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")
    with suppress(OSError):
        for line in defaults.read_text().splitlines():
            if named := re.match(rf"\s*{re.escape(name)}[\s=:]+(.*\S)", line):
                return named[1]
    return None


def _stop(session: Any) -> None:
    """Stop the session at the end of the program; Spark may have stopped before."""
    with suppress(Exception):
        session.stop()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the handler of Ctrl-C: a Spark context replaces it, and its own leaves no job the time to end."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _environment(*, is_local: bool, quick: bool = False) -> Iterator[None]:
    """Set the environment for Spark's launcher, and restore the previous one afterwards.

    Args:
        is_local: whether the executors are on this machine.
        quick: whether they are in the driver's JVM, whose Python processes can start from :func:`quick_home`.
    """
    wanted = {"JAVA_HOME": find_java()}
    if is_local:  # else executors would take whatever python3 the path has
        wanted |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    if quick:
        wanted["SPARK_HOME"] = quick_home()
    missing = [name for name, value in wanted.items() if value is not None and name not in os.environ]
    os.environ.update({name: value for name, value in wanted.items() if value is not None and name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def other_python(text: str) -> str | None:
    """Return what to do if a text of Spark says that executors run another Python; None: it does not.

    Args:
        text: of an error, with its stack.
    """
    differs = _MISMATCH.search(text)
    missing = _MISSING.search(text)
    if differs is None and missing is None:
        return None
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context  # of a server of Spark Connect, which does not tell, none
    runs = "" if context is None else f" {context.pythonExec!r},"
    ours = ".".join(map(str, sys.version_info[:2]))
    what = f"Python {differs[1]}" if differs is not None else f"a Python without module {missing and missing[1]}"
    return (
        f"Spark's executors run{runs} {what}, and this program runs {sys.executable}, Python {ours}: have "
        f"PYSPARK_PYTHON, or spark.pyspark.python, name a Python {ours} with Sluiceway before the session is made"
    )


def full_text(error: BaseException) -> str:
    """Return the text of an error of Spark, with its stack. Never raises: py4j asks the JVM, which may be gone."""
    try:
        return str(error)
    except Exception as second:
        return f"{type(error).__name__}, and Spark's JVM does not say more ({type(second).__name__})"


def said(error: BaseException) -> str:
    """Return the first lines of an error of Spark, without its stack."""
    lines = [line for line in full_text(error).splitlines() if line.strip()]
    kept = []
    for line in lines:
        if line.lstrip().startswith(("at ", "JVM stacktrace", "Driver stacktrace", "...")):
            break
        kept.append(line.strip())
    return (" ".join(kept) or type(error).__name__)[:1000]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
