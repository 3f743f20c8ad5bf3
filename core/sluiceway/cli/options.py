"""The options that every command about a pipeline has, and how they become settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from itertools import pairwise
from typing import Any, Final

import click
import msgspec

from sluiceway.cli.errors import TRACEBACK_FLAG, warn
from sluiceway.cli.habits import translated
from sluiceway.config.settings import OPTIONS, Resolved, resolve

__all__ = ["Request", "pipeline_command", "settings_options"]

_SETTINGS: Final = (
    click.Option(
        ["--parallelism", "-p"],
        metavar="N",
        help="Default parallelism of the steps. Default: the number of workers, or 1.",
    ),
    click.Option(
        ["--max-parallelism"],
        metavar="N",
        help="Number of key groups: the highest parallelism that the state can ever be restored with.",
    ),
    click.Option(["--workers"], metavar="N", help="Number of worker processes; 0 runs the job in this process."),
    click.Option(["--engine"], metavar="NAME", help="Engine that runs the job: local, spark."),
    click.Option(
        ["--hosted/--no-hosted"],
        default=None,
        help="Run Sluiceway workers on the executors of Spark (engine spark only).",
    ),
    click.Option(
        ["--state-backend"], metavar="NAME", help="State backend for keyed state: memory, filesystem, rocksdb."
    ),
    click.Option(["--transport"], metavar="NAME", help="Transport between workers: shm, zmq."),
    click.Option(
        ["--scheduler"], metavar="NAME", help="Scheduling strategy: pipelined-region, eager, lazy-from-sources."
    ),
    click.Option(
        ["--chaining/--no-chaining"],
        default=None,
        help="Chain neighbouring steps into one task. Default: chaining.",
    ),
    click.Option(
        ["--object-reuse/--no-object-reuse"],
        default=None,
        help="Pass records between steps without defensive copies. Default: no reuse.",
    ),
    click.Option(
        ["--local-aggregation"],
        metavar="WHICH",
        help="Window aggregations that are combined before they are sent: exact, all, off.",
    ),
    click.Option(
        ["--buffer-timeout"],
        metavar="TIME",
        help="Longest time that a record is buffered on its way, such as 100ms; -1 waits for a full batch.",
    ),
    click.Option(["--batch-size"], metavar="N", help="Number of records per batch under load."),
    click.Option(["--latency-interval"], metavar="TIME", help="Time between latency markers; 0 disables them."),
    click.Option(
        ["--auto-watermark-interval"],
        metavar="TIME",
        help="Time between watermarks; 0 emits one after each batch.",
    ),
    click.Option(["--metrics"], metavar="NAME", multiple=True, help="Metrics reporter; can be repeated."),
    click.Option(["--metrics-interval"], metavar="TIME", help="Time between metrics reports."),
    click.Option(
        ["--restart"],
        metavar="STRATEGY",
        help="Restart strategy: none, fixed-delay:3:1s, exponential:1s:1min, failure-rate:3:5min:1s.",
    ),
    click.Option(
        ["--heartbeat-timeout"], metavar="TIME", help="Kill a worker that sends no heartbeat for this time."
    ),
    click.Option(
        ["--cancellation-timeout"],
        metavar="TIME",
        help="Kill a worker whose cancelled task does not end within this time.",
    ),
    click.Option(
        ["--network-buffers"], metavar="N", help="Number of 32 KiB buffers per worker for data that it sends."
    ),
    click.Option(
        ["--log-level"],
        metavar="LEVEL",
        help="Lowest level that is logged: debug, info, warning, error, critical.",
    ),
    click.Option(["--log-format"], metavar="FORMAT", help="Format of log lines on stderr: text, json."),
    click.Option(["--seed"], metavar="N", help="Seed of random partitioners, to repeat a run."),
    click.Option(["--checkpoint-interval"], metavar="TIME", help="Time between checkpoints; 0 disables them."),
    click.Option(["--checkpoints"], metavar="PLACE", help="Directory or URL of the checkpoints."),
    click.Option(
        ["--from"],
        metavar="PLACE",
        help="Restore the newest checkpoint or savepoint in the directory or URL PLACE.",
    ),
    click.Option(
        ["--resume/--no-resume"],
        default=None,
        help="Restore the job's newest checkpoint in --checkpoints; start from the beginning if it has none.",
    ),
    click.Option(
        ["--allow-dropped-state/--no-allow-dropped-state"],
        default=None,
        help="Restore although state has no step any more, and drop that state. Default: refuse.",
    ),
    click.Option(
        ["--allow-pickles/--no-allow-pickles"],
        default=None,
        help="Restore a checkpoint that other users can have written. Default: refuse.",
    ),
    click.Option(
        ["--checkpoint-retained"], metavar="N", help="Number of completed checkpoints that are retained."
    ),
    click.Option(["--checkpoint-mode"], metavar="MODE", help="Checkpointing mode: exactly-once, at-least-once."),
    click.Option(
        ["--checkpoint-unaligned/--no-checkpoint-unaligned"],
        default=None,
        help="Let barriers overtake buffered records and store those in the checkpoint. Default: aligned.",
    ),
    click.Option(
        ["--checkpoint-aligned-timeout"],
        metavar="TIME",
        help="Time that barriers stay aligned before they overtake; 0 overtakes at once.",
    ),
    click.Option(["--checkpoint-timeout"], metavar="TIME", help="Abort a checkpoint that takes longer."),
    click.Option(
        ["--checkpoint-min-pause"],
        metavar="TIME",
        help="Shortest time from the end of a checkpoint to the start of the next.",
    ),
    click.Option(
        ["--checkpoint-max-concurrent"],
        metavar="N",
        help="Number of checkpoints that can be in progress at a time.",
    ),
    click.Option(
        ["--checkpoint-tolerated-failures"],
        metavar="N",
        help="Number of checkpoints that can fail in a row before the job fails.",
    ),
    click.Option(
        ["--local-recovery"],
        metavar="SIZE",
        help="Size of each worker's local copies of checkpoints, such as 2gb; 0 disables them.",
    ),
    click.Option(
        ["--on-error"], metavar="ACTION", help="Action for a record on which a function raises: fail, skip."
    ),
    click.Option(
        ["--max-dead-letters"],
        metavar="N",
        help="Number of records that a subtask of a step can skip before the job fails.",
    ),
    click.Option(["--dead-letters"], metavar="DIR", help="Directory for skipped records."),
)
_NAMES: Final = tuple(option.name or "" for option in _SETTINGS)


class Request(msgspec.Struct, frozen=True):
    """Arguments of a command about a pipeline.

    Attributes:
        target: where the pipeline is.
        arguments: the script's own arguments.
        resolved: the settings, and where each came from.
        variables: environment variables that say the same as the options of the command line.
    """

    target: str
    arguments: tuple[str, ...]
    resolved: Resolved
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def keywords(self) -> dict[str, Any]:
        """All settings, as the API takes them: ``pipeline.check(**request.keywords)``."""
        settings = self.resolved.settings
        return {o.name.replace("-", "_"): getattr(settings, o.field) for o in OPTIONS.values()}


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a run out of what a command was given."""
    chosen = {name: given.pop(name, None) for name in _NAMES}
    chosen["metrics"] = ",".join(chosen["metrics"] or ()) or None
    return chosen


def _variables(chosen: Mapping[str, Any]) -> dict[str, str]:
    given = {name.replace("_", "-"): value for name, value in chosen.items() if value is not None}
    return {
        OPTIONS[name].variable: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }


def _resolve(chosen: Mapping[str, Any]) -> Resolved:
    def flag(keyword: str) -> str:
        return ("--no-" if chosen[keyword] is False else "--") + keyword.replace("_", "-")

    resolved = resolve(chosen, flag=flag)
    for hint in resolved.hints:
        warn(hint)
    return resolved


def _refusal(option: click.Option, why: str) -> click.Option:
    """Return a hidden option that refuses its value with the reason."""

    def refuse(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value not in (None, ()):
            raise click.UsageError(f"{option.opts[0]} {why}", ctx)

    return click.Option([*option.opts], hidden=True, expose_value=False, callback=refuse)


class _PipelineCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with Flink's names for options, too."""
        given = translated(ctx, args)
        try:
            return super().parse_args(ctx, list(given))  # which it empties
        except click.MissingParameter as error:
            hint = _taken_for_value(ctx, given)
            if hint:
                raise click.UsageError(f"{error.format_message()} {hint}", ctx) from None
            raise


def _taken_for_value(ctx: click.Context, arguments: Sequence[str]) -> str:
    """Return a hint if an option has taken the target for its value, as in ``run -p job.py``; or an empty text."""
    takes_value = {
        name
        for option in ctx.command.params
        if isinstance(option, click.Option) and not option.is_flag
        for name in option.opts
    }
    for option, value in pairwise(arguments):
        if option in takes_value and value.endswith(".py"):
            return f"{option} takes a value, and {value} was taken for it."
    return ""


def settings_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command function the options of a run, as one argument ``resolved``."""

    @wraps(function)
    def wrapper(**given: Any) -> None:
        function(resolved=_resolve(_chosen(given)), **given)

    # click collects them from decorators, of which the last one is the first option.
    wrapper.__click_params__ = list(reversed(_SETTINGS))  # type: ignore[attr-defined]
    return wrapper


def pipeline_command(
    name: str, short_help: str, refused: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command that takes ``TARGET [SCRIPT ARGUMENTS]`` and the options of a run.

    Before the target an unknown option is an error; after it, it belongs to the script, and so does everything
    after ``--``. Arguments of the function's own come before the target. It gets ``request``, and its own.

    Args:
        name: what it is called.
        short_help: for the list of commands.
        refused: options of a run that this command does not take, and what is said to whoever gives them. They
            must be known for that: after the target they would be the script's.
    """
    refused = refused or {}

    def decorate(function: Callable[..., None]) -> click.Command:
        @wraps(function)
        def wrapper(target: str, script_arguments: tuple[str, ...], traceback: bool, **given: Any) -> None:
            ctx = click.get_current_context()
            ctx.meta[TRACEBACK_FLAG] = traceback
            # click is told to ignore unknown options, so one before the target is taken for the target.
            if target.startswith("-"):
                opts = [opt for p in ctx.command.params for opt in (*p.opts, *p.secondary_opts)]
                wrong = target.partition("=")[0]
                raise click.NoSuchOption(
                    wrong, possibilities=get_close_matches(wrong, opts, n=2, cutoff=0.75), ctx=ctx
                )
            chosen = _chosen(given)
            request = Request(target, script_arguments, _resolve(chosen), _variables(chosen))
            function(request=request, **given)

        own = list(reversed(getattr(function, "__click_params__", [])))
        return _PipelineCommand(
            name,
            callback=wrapper,
            help=function.__doc__,
            short_help=short_help,
            params=[
                *(param for param in own if isinstance(param, click.Argument)),
                click.Argument(["target"]),
                click.Argument(
                    ["script_arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT ARGUMENTS]"
                ),
                *(param for param in own if not isinstance(param, click.Argument)),
                *(_refusal(o, refused[o.opts[0]]) if o.opts[0] in refused else o for o in _SETTINGS),
                click.Option(
                    ["--traceback"], is_flag=True, help="Show full tracebacks, with the frames of the engine."
                ),
            ],
            context_settings={"ignore_unknown_options": True},
        )

    return decorate
