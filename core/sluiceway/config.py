"""Options of a run: their names, types, defaults, and where each value came from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

from sluiceway.errors import ConfigurationError, NotBuiltYetError, UnknownNameError, choose

__all__ = ["OPTIONS", "Option", "Resolved", "Settings", "duration_ms", "resolve"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run, after flags, environment, files and defaults were put together.

    Attributes:
        parallelism: subtasks per step where the pipeline does not say.
        max_parallelism: key groups where the pipeline does not say; None: derived from the parallelism.
        workers: worker processes; 0: this process.
        engine: name of the engine.
        state_backend: name of the state backend.
        transport: name of the transport.
        chaining: whether neighbouring steps may share a task.
        scheduler: name of the scheduling strategy.
        buffer_timeout_ms: how long a record may wait for company on its way to another task.
        batch_size: records per batch under load.
        latency_interval_ms: time between latency markers; 0: none.
        metrics: names of metrics reporters.
        metrics_interval_ms: time between reports.
        seed: for partitioners that draw lots; None: a new one for each run.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    workers: int = 0
    engine: str = "local"
    state_backend: str = "memory"
    transport: str = "local"
    chaining: bool = True
    scheduler: str = "pipelined-region"
    buffer_timeout_ms: int = 0
    batch_size: int = 1024
    latency_interval_ms: int = 0
    metrics: tuple[str, ...] = ()
    metrics_interval_ms: int = 10_000
    seed: int | None = None


class _UnfitError(Exception):
    """A value that an option cannot take."""


def _whole(least: int, most: int | None = None) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise _UnfitError
        if most is not None and value > most:
            raise _UnfitError
        return value

    return parse


def _seed(value: object) -> int:
    return _whole(-(2**63), 2**63 - 1)(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _UnfitError
    return value.strip()


def _names(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise _UnfitError
    return tuple(dict.fromkeys(_name(part) for part in parts))


_TRUTH: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _truth(value: object) -> bool:
    known = _TRUTH.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(known, bool):
        raise _UnfitError
    return known


_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def duration_ms(value: object) -> int:
    """A duration in whole milliseconds.

    Args:
        value: a timedelta, a whole number of ms, or a text: ``100ms``, ``1.5s``, ``2min``, ``1h``, ``1d``.

    Raises:
        ValueError: it is none of these, is negative, or is not a whole number of ms.
    """
    ms: float
    if isinstance(value, timedelta):
        ms = value / timedelta(milliseconds=1)
    elif isinstance(value, int) and not isinstance(value, bool):
        ms = value
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower())):
        number, unit = match.groups()
        if unit not in _UNITS_MS:
            raise ValueError(f"{value!r} has no unit that is known: {', '.join(filter(None, _UNITS_MS))}")
        ms = round(float(number) * _UNITS_MS[unit], 6)
    else:
        raise ValueError(f"{value!r} is not a duration")
    if ms < 0 or ms != int(ms):
        raise ValueError(f"{value!r} is not a whole number of milliseconds >= 0")
    return int(ms)


def _duration(least: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if least < 0 and (value == -1 or value == "-1"):
            return -1
        try:
            ms = duration_ms(value)
        except ValueError:
            raise _UnfitError from None
        if ms < least:
            raise _UnfitError
        return ms

    return parse


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: what files and flags call it: ``buffer-timeout``. The environment says ``SLUICEWAY_BUFFER_TIMEOUT``,
            a keyword argument ``buffer_timeout``.
        field: the field of :class:`Settings` that it fills.
        expects: what its value must be, for messages.
        parse: makes the field's value of a given one.
    """

    name: str
    field: str
    expects: str
    parse: Callable[[object], Any]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "SLUICEWAY_" + self.name.upper().replace("-", "_")


_A_DURATION: Final = "a duration such as 100ms, 5s or a whole number of ms"

OPTIONS: Final[Mapping[str, Option]] = {
    option.name: option
    for option in (
        Option("parallelism", "parallelism", "a whole number >= 1", _whole(1)),
        Option("max-parallelism", "max_parallelism", "a whole number from 1 to 32768", _whole(1, 32768)),
        Option("workers", "workers", "a whole number >= 0", _whole(0)),
        Option("engine", "engine", "the name of an engine", _name),
        Option("state-backend", "state_backend", "the name of a state backend", _name),
        Option("transport", "transport", "the name of a transport", _name),
        Option("chaining", "chaining", "true or false", _truth),
        Option("scheduler", "scheduler", "the name of a scheduling strategy", _name),
        Option("buffer-timeout", "buffer_timeout_ms", f"-1 or {_A_DURATION}", _duration(-1)),
        Option("batch-size", "batch_size", "a whole number >= 1", _whole(1)),
        Option("latency-interval", "latency_interval_ms", _A_DURATION, _duration(0)),
        Option("metrics", "metrics", "a list of names of metrics reporters", _names),
        Option("metrics-interval", "metrics_interval_ms", f"{_A_DURATION}, at least 1ms", _duration(1)),
        Option("seed", "seed", "a whole number", _seed),
    )
}
"""Every option of a run, by name."""

_NOT_BUILT_YET: Final = {"checkpoint-interval": "checkpoints", "checkpoints": "checkpoints", "from": "checkpoints"}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The options of one run, and where each came from.

    Attributes:
        settings: the options.
        origins: by name of the option: the flag, the variable or the file that it came from, or ``default``.
        file: the configuration file that was read, or None.
        hints: what looks like a mistake but is none for certain, for people.
    """

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None = None
    hints: tuple[str, ...] = ()


def resolve(
    given: Mapping[str, object] | None = None,
    *,
    flag: Callable[[str], str] = "the argument {}".format,
    environ: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Resolved:
    """Put the options of a run together: what is given goes before environment, file and default.

    Args:
        given: options by keyword (``buffer_timeout=...``); None means not given.
        flag: how messages call a given option, from its keyword.
        environ: where ``SLUICEWAY_*`` variables are looked up; None: the process's environment.
        directory: where the search for ``sluiceway.toml``, or ``[tool.sluiceway]`` in ``pyproject.toml``, begins;
            it goes on upwards, and the first one found is the one. None: the working directory.

    Raises:
        UnknownNameError: an option that does not exist.
        ConfigurationError: a value that an option cannot take, options that contradict each other, or a file
            that cannot be read. Names the flag, the variable or the file.
        NotBuiltYetError: the option is part of the design, not of this version.
    """
    environ = os.environ if environ is None else environ
    file, table = _find_file(Path.cwd() if directory is None else Path(directory).absolute())
    layers = [_of_given(given or {}, flag), _of_environment(environ), _of_file(file, table)]

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, option in OPTIONS.items():
        origins[name] = "default"
        for layer in layers:
            if name not in layer:
                continue
            value, origin, shown = layer[name]
            try:
                values[option.field] = option.parse(value)
            except _UnfitError:
                raise ConfigurationError(f"{shown} is not {option.expects}") from None
            origins[name] = origin
            break
    for layer in layers:
        for name, what in _NOT_BUILT_YET.items():
            if name in layer:
                raise NotBuiltYetError(f"{layer[name][1]}: {what} are not built yet; leave it out")
    settings = Settings(**values)
    _check(settings, origins)
    return Resolved(settings, origins, file, _hints(environ))


_Layer: TypeAlias = dict[str, tuple[object, str, str]]
"""By option: the value, where it comes from, and both together as messages show them."""


def _of_given(given: Mapping[str, object], flag: Callable[[str], str]) -> _Layer:
    keywords = {name.replace("-", "_"): name for name in (*OPTIONS, *_NOT_BUILT_YET)}
    layer: _Layer = {}
    for key, value in given.items():
        if key not in keywords:
            raise choose("option", key, (k for k, name in keywords.items() if name in OPTIONS))
        if value is not None:
            layer[keywords[key]] = (value, flag(key), f"{flag(key)}={value!r}")
    return layer


def _of_environment(environ: Mapping[str, str]) -> _Layer:
    variables = [o.variable for o in OPTIONS.values()]
    variables += ["SLUICEWAY_" + name.upper().replace("-", "_") for name in _NOT_BUILT_YET]
    return {
        variable.removeprefix("SLUICEWAY_").lower().replace("_", "-"): (value, variable, f"{variable}={value!r}")
        for variable in variables
        if (value := environ.get(variable))
    }


def _of_file(file: Path | None, table: Mapping[str, object]) -> _Layer:
    layer: _Layer = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in OPTIONS and name not in _NOT_BUILT_YET:
            raise UnknownNameError(f"{file}: {choose('option', name, OPTIONS)}")
        if name in layer:
            raise ConfigurationError(f"{file} gives {name} twice, with '-' and with '_': take one away")
        layer[name] = (value, f"{key} in {file}", f"{key} = {value!r} in {file}")
    return layer


def _find_file(directory: Path) -> tuple[Path | None, Mapping[str, object]]:
    for folder in (directory, *directory.parents):
        own, project = folder / "sluiceway.toml", folder / "pyproject.toml"
        if own.is_file():
            return own, _read(own)
        # The word is looked for first: most of these files have nothing for us, and need no TOML parser.
        if project.is_file() and b"sluiceway" in _bytes(project):
            table = _read(project).get("tool", {})
            if isinstance(table, dict) and "sluiceway" in table:
                if not isinstance(table["sluiceway"], dict):
                    raise ConfigurationError(f"{project}: tool.sluiceway is not a table")
                return project, table["sluiceway"]
    return None, {}


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from error


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(_bytes(file).decode())
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from error


def _check(settings: Settings, origins: Mapping[str, str]) -> None:
    most = settings.max_parallelism
    if most is not None and settings.parallelism > most:
        raise ConfigurationError(
            f"parallelism is {settings.parallelism} ({origins['parallelism']}), "
            f"and max-parallelism only {most} ({origins['max-parallelism']}): raise the one or lower the other"
        )
    if settings.workers:
        raise NotBuiltYetError(
            f"workers is {settings.workers} ({origins['workers']}): worker processes are not built yet; "
            "leave it at 0, which runs the job in this process"
        )


def _hints(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {o.variable for o in OPTIONS.values()} | _OTHER_VARIABLES
    unknown = sorted(v for v in environ if v.startswith("SLUICEWAY_") and v not in known)
    if not unknown:
        return ()
    # Plugins have variables of their own, so only what looks like a slip is mentioned.
    close = {v: get_close_matches(v, known, n=1, cutoff=0.9) for v in unknown}
    return tuple(f"{v} is not an option: did you mean {match[0]}?" for v, match in close.items() if match)


_OTHER_VARIABLES: Final = {
    "SLUICEWAY_DISABLE_PLUGINS",
    "SLUICEWAY_TRACE_PLUGINS",
    "SLUICEWAY_TRACEBACK",
    "SLUICEWAY_METRICS_FILE",
}
