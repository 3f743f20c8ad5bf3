"""The options of a run: their defaults, and how flags, environment and files are put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from sluiceway.config.options import OPTIONS, Option, UnfitError, duration_ms
from sluiceway.errors import ConfigurationError, UnknownNameError, choose
from sluiceway.util.redaction import redact_options

__all__ = ["OPTIONS", "Option", "Resolved", "Settings", "duration_ms", "resolve"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run, after flags, environment, files and defaults were put together.

    Attributes:
        parallelism: subtasks per step where the pipeline does not say; :func:`resolve` makes it the number of
            workers where nobody says it.
        max_parallelism: key groups where the pipeline does not say; None: derived from the parallelism.
        workers: worker processes; 0: this process.
        engine: name of the engine.
        hosted: whether it places workers of ours on what it runs on.
        state_backend: name of the state backend.
        transport: name of the transport; ``auto``: by reference in one process, ``shm`` between workers.
        chaining: whether neighbouring steps may share a task.
        object_reuse: whether records are handed from step to step as they are, without the copies that keep a
            record as it was when it was emitted.
        local_aggregation: whether producers combine records of windows before they send them: ``exact``, where
            that changes no result for certain; ``all``, wherever there is a function to merge with; ``off``.
        scheduler: name of the scheduling strategy.
        buffer_timeout_ms: how long a record may wait for company on its way to another task; 0: while its task
            has more to do at once, for 5 ms at most; -1: until a batch is full.
        batch_size: records per batch under load.
        latency_interval_ms: time between latency markers; 0: none.
        auto_watermark_interval_ms: time between watermarks of generators that are asked; 0: after each batch.
        metrics: names of metrics reporters.
        metrics_interval_ms: time between reports.
        restart: the restart strategy, as :func:`sluiceway.scheduler.restart_strategy` reads it.
        heartbeat_timeout_ms: a worker process that sends no heartbeat for longer is killed.
        network_buffers: buffers of 32 KiB in each worker, for what it sends to others.
        cancellation_timeout_ms: a worker that is still in a call of a cancelled task after so long is killed.
        log_level: the lowest level that is logged, in small letters; None: ``info`` in a cluster that stays, else
            what the program says, or ``warning``.
        log_format: of log lines on standard error, ``text`` or ``json``.
        checkpoint_interval_ms: time from one checkpoint to the next; 0: none are taken.
        checkpoints: path or URL of the place where checkpoints are kept; None: a temporary directory.
        from_checkpoint: path or URL of a checkpoint to begin with; None: at the beginning.
        resume: whether to begin with the newest checkpoint or savepoint of the job in ``checkpoints``, and at the
            beginning if the job has left none there.
        allow_dropped_state: whether state of that checkpoint may be left behind for which there is no step any
            more.
        allow_pickles: whether the job may begin with a checkpoint that somebody else may have written.
        checkpoint_retained: how many completed ones are kept.
        checkpoint_mode: ``exactly-once``, or ``at-least-once``: no channel waits for others meanwhile, and what it
            brings is processed a second time after a failure.
        checkpoint_unaligned: whether barriers overtake records, which belong to the checkpoint then.
        checkpoint_aligned_timeout_ms: for how long after its beginning a checkpoint's barriers do not.
        checkpoint_timeout_ms: a checkpoint that takes longer is given up.
        checkpoint_min_pause_ms: the least time between the end of a checkpoint and the next one.
        checkpoint_max_concurrent: how many may be under way at a time.
        checkpoint_tolerated_failures: how many in a row may fail before the job does, and is restarted if its
            restart strategy says so.
        local_recovery_bytes: how much each worker keeps on its own disk of what it has written for checkpoints, to
            go on from without the storage.
        on_error: what becomes of a record on which a function raises, where its step does not say: ``fail`` or
            ``skip``.
        max_dead_letters: how many records a subtask of a step skips before it fails; None: any number.
        dead_letters: directory for the records that are skipped; None: there is none.
        seed: for partitioners that draw lots; None: a new one for each run.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    workers: int = 0
    engine: str = "local"
    hosted: bool = False
    state_backend: str = "memory"
    transport: str = "auto"
    chaining: bool = True
    object_reuse: bool = False
    local_aggregation: str = "exact"
    scheduler: str = "pipelined-region"
    buffer_timeout_ms: int = 0
    batch_size: int = 1024
    latency_interval_ms: int = 0
    auto_watermark_interval_ms: int = 200
    metrics: tuple[str, ...] = ()
    metrics_interval_ms: int = 10_000
    restart: str = "none"
    heartbeat_timeout_ms: int = 50_000
    cancellation_timeout_ms: int = 30_000
    network_buffers: int = 512
    log_level: str | None = None
    log_format: str = "text"
    checkpoint_interval_ms: int = 0
    checkpoints: str | None = None
    from_checkpoint: str | None = None
    resume: bool = False
    allow_dropped_state: bool = False
    allow_pickles: bool = False
    checkpoint_retained: int = 1
    checkpoint_mode: str = "exactly-once"
    checkpoint_unaligned: bool = False
    checkpoint_aligned_timeout_ms: int = 0
    checkpoint_timeout_ms: int = 600_000
    checkpoint_min_pause_ms: int = 0
    checkpoint_max_concurrent: int = 1
    checkpoint_tolerated_failures: int = 0
    local_recovery_bytes: int = 0
    on_error: str = "fail"
    max_dead_letters: int | None = None
    dead_letters: str | None = None
    seed: int | None = None

    def __repr__(self) -> str:
        options = redact_options({field.name: getattr(self, field.name) for field in fields(self)})
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in options.items())})"


class Resolved(msgspec.Struct, frozen=True):
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
    """
    environ = os.environ if environ is None else environ
    file, table = _find_file(_here() if directory is None else Path(directory).absolute())
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
            except UnfitError:
                raise ConfigurationError(f"{shown} is not {option.expects}") from None
            origins[name] = origin
            break
    if values.get("checkpoint_interval_ms") and origins["restart"] == "default":
        values["restart"] = _RESTART_FROM_CHECKPOINTS
        origins["restart"] = "default with checkpoints"
    if values.get("workers") and origins["parallelism"] == "default":
        values["parallelism"] = min(values["workers"], values.get("max_parallelism") or values["workers"])
        origins["parallelism"] = "default with workers"
    settings = Settings(**values)
    _check(settings, origins)
    return Resolved(settings, origins, file, _hints(environ))


_RESTART_FROM_CHECKPOINTS: Final = "exponential:1s:1min:6"
"""The restart strategy of a job with checkpoints that says none: else they would be of no use to it. A record that
fails six times has had about half a minute, which is enough for what comes and goes."""

_Layer: TypeAlias = dict[str, tuple[object, str, str]]
"""By option: the value, where it comes from, and both together as messages show them."""


def _of_given(given: Mapping[str, object], flag: Callable[[str], str]) -> _Layer:
    keywords = {name.replace("-", "_"): name for name in OPTIONS}
    keywords["from_checkpoint"] = "from"  # which Python keeps for itself
    layer: _Layer = {}
    for key, value in given.items():
        if key.split("_")[0] == "web":
            raise UnknownNameError(
                f"there is no option {key!r}: pages about a job are served by the command line, as in "
                "'sluiceway run --web FILE', where FILE is the program"
            )
        if key not in keywords:
            raise choose("option", key, (k for k, name in keywords.items() if name in OPTIONS and k != "from"))
        if value is not None:
            layer[keywords[key]] = (value, flag(key), f"{flag(key)}={value!r}")
    return layer


def _of_environment(environ: Mapping[str, str]) -> _Layer:
    return {
        name: (value, variable, f"{variable}={value!r}")
        for variable, name in _VARIABLES.items()
        if (value := environ.get(variable))
    }


def _of_file(file: Path | None, table: Mapping[str, object]) -> _Layer:
    layer: _Layer = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in OPTIONS:
            raise UnknownNameError(f"{file}: {choose('option', name, OPTIONS)}")
        if name in layer:
            raise ConfigurationError(f"{file} gives {name} twice, with '-' and with '_': take one away")
        layer[name] = (value, f"{key} in {file}", f"{key} = {value!r} in {file}")
    return layer


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # the working directory was removed
        return Path("/")


def _find_file(directory: Path) -> tuple[Path | None, Mapping[str, object]]:
    for folder in (directory, *directory.parents):
        own, project = folder / "sluiceway.toml", folder / "pyproject.toml"
        if os.path.isfile(own):  # not Path.is_file(): that raises where a directory may not be entered
            return own, _read(own)
        # The word is looked for first: most of these files have nothing for us, and need no TOML parser.
        if os.path.isfile(project) and b"sluiceway" in _bytes(project):
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


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return _parsed(_bytes(file))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from error


# A program may run many jobs, as tests and notebooks do, and the parser takes longer than a small one of them.
@lru_cache(maxsize=4)
def _parsed(content: bytes) -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(content.decode("utf-8-sig"))  # editors on Windows write a byte order mark


def _check(settings: Settings, origins: Mapping[str, str]) -> None:
    most = settings.max_parallelism
    if most is not None and settings.parallelism > most:
        raise ConfigurationError(
            f"parallelism is {settings.parallelism} ({origins['parallelism']}), "
            f"and max-parallelism only {most} ({origins['max-parallelism']}): raise the one or lower the other"
        )
    if settings.local_recovery_bytes and settings.checkpoints is None:
        raise ConfigurationError(
            f"local-recovery ({origins['local-recovery']}) keeps copies of what is written to the place that "
            "checkpoints names, and there is none: name one, or leave local-recovery out"
        )
    _check_resume(settings, origins)
    _check_unaligned(settings, origins)


def _check_resume(settings: Settings, origins: Mapping[str, str]) -> None:
    if not settings.resume:
        return
    if settings.checkpoints is None:
        raise ConfigurationError(
            f"resume ({origins['resume']}) begins with the job's newest checkpoint in the place that checkpoints "
            "names, and there is none: name one with --checkpoints"
        )
    if settings.from_checkpoint is not None:
        raise ConfigurationError(
            f"resume ({origins['resume']}) and from ({origins['from']}) both say what the job begins with: leave "
            "one out; --no-resume overrides a configured resume"
        )


def _check_unaligned(settings: Settings, origins: Mapping[str, str]) -> None:
    if not settings.checkpoint_unaligned:
        if settings.checkpoint_aligned_timeout_ms:
            raise ConfigurationError(
                f"checkpoint-aligned-timeout ({origins['checkpoint-aligned-timeout']}) says when checkpoints "
                "become unaligned, and checkpoint-unaligned is false: set that to true, or leave the timeout away"
            )
        return
    where = f"checkpoint-unaligned ({origins['checkpoint-unaligned']})"
    if settings.checkpoint_mode != "exactly-once":
        raise ConfigurationError(
            f"{where} needs checkpoint-mode exactly-once, and it is {settings.checkpoint_mode} "
            f"({origins['checkpoint-mode']}): without alignment there is nothing to overtake"
        )
    if settings.checkpoint_max_concurrent > 1:
        raise ConfigurationError(
            f"{where} needs checkpoint-max-concurrent 1, and it is {settings.checkpoint_max_concurrent} "
            f"({origins['checkpoint-max-concurrent']}): what is in flight is kept for one checkpoint at a time"
        )


def _hints(environ: Mapping[str, str]) -> tuple[str, ...]:
    unknown = sorted(
        v for v in environ if v.startswith("SLUICEWAY_") and v not in _VARIABLES and v not in _OTHER_VARIABLES
    )
    if not unknown:
        return ()
    known = {*_VARIABLES, *_OTHER_VARIABLES}
    # Plugins have variables of their own, so only what looks like a slip is mentioned.
    close = {v: get_close_matches(v, known, n=1, cutoff=0.9) for v in unknown}
    return tuple(f"{v} is not an option: did you mean {match[0]}?" for v, match in close.items() if match)


_VARIABLES: Final = {option.variable: name for name, option in OPTIONS.items()}
_OTHER_VARIABLES: Final = {
    "SLUICEWAY_DISABLE_PLUGINS",
    "SLUICEWAY_TRACE_PLUGINS",
    "SLUICEWAY_TRACEBACK",
    "SLUICEWAY_METRICS_FILE",
    "SLUICEWAY_HOME",
}
