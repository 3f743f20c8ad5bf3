"""``sluiceway run``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway import exit_codes
from sluiceway.cli.habits import refused_option
from sluiceway.cli.logs import metrics_on_stderr
from sluiceway.cli.observation import Observation, observed
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.output import flush, is_broken_pipe, say
from sluiceway.cli.progress import Progress, summary, summary_json
from sluiceway.cli.resume_hints import resumed, tell_of_checkpoint, tell_where_to_go_on
from sluiceway.cli.target import load_target
from sluiceway.cli.web_options import options_of, refuse_without_web, web_options
from sluiceway.errors import JobCancelledError
from sluiceway.util.signal_output import say_from_handler

if TYPE_CHECKING:
    from sluiceway.api import Pipeline
    from sluiceway.api.program import Program
    from sluiceway.api.results import CloseableIterator
    from sluiceway.config.settings import Settings
    from sluiceway.engine import Engine, Job

__all__ = ["run", "run_job"]

_NO_SUBMIT: Final = "the pages of one job take no programs, those of a cluster do: sluiceway cluster start --web"


@pipeline_command("run", "Run a pipeline.")
@click.option("--no-progress", is_flag=True, help="Do not show progress on stderr.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the closing line.")
@click.option(
    "--take",
    metavar="N",
    type=click.IntRange(min=1),
    help="Stop after N records (stream targets only).",
)
@click.option(
    "--savepoint",
    metavar="PLACE",
    help="On Ctrl-C or SIGTERM, stop with a savepoint in the directory or URL PLACE.",
)
@click.option("--json", "as_json", is_flag=True, help="Write progress and closing line to stderr as JSON objects.")
@click.option(
    "--history",
    metavar="DIR",
    help="Leave a record of the job in DIR when it has ended, for 'sluiceway web --history DIR'.",
)
@click.option("--web", is_flag=True, help="Serve pages about the job while it runs, and print their link.")
@click.option("--web-stay", is_flag=True, help="Serve them after the job has ended, too, until Ctrl-C.")
@web_options
@refused_option("--web-submit", hint=_NO_SUBMIT)
def run(
    request: Request,
    no_progress: bool,
    quiet: bool,
    take: int | None,
    savepoint: str | None,
    as_json: bool,
    history: str | None,
    web: bool,
    web_stay: bool,
    **web_given: Any,
) -> None:
    """Run the pipeline in TARGET: a file, FILE:NAME or package.module:NAME.

    NAME is a Pipeline, or a function that returns one and takes no argument or the list of SCRIPT ARGUMENTS.
    Default: flow. NAME can also be a stream: then only the steps before it run, and its records are printed, with
    --take the first N. Options after TARGET that sluiceway does not know belong to the script, as does everything
    after '--'; the script finds them in sys.argv as well.

    Output of the pipeline goes to stdout, everything else to stderr. Ctrl-C or SIGTERM cancels the job, a second
    Ctrl-C ends it at once. With --savepoint the job takes a savepoint instead and ends, and the directory of the
    savepoint is printed on stderr; if the savepoint fails, the job is cancelled. With --checkpoints DIR --resume
    the same command starts the job for the first time and resumes it later.
    """
    settings = request.resolved.settings
    if not web:
        refuse_without_web(web_given | {"web_stay": web_stay})
    options = None
    if web:
        options = replace(
            options_of(**web_given),
            target=request.target,
            arguments=request.arguments,
            variables=request.variables,
        )
    shown = Observation(history, options, web_stay, request.resolved)
    with _workers_ahead(settings):
        _run(request, settings, no_progress, quiet, take, savepoint, as_json, shown)


@contextmanager
def _workers_ahead(settings: Settings) -> Iterator[None]:
    """Start the processes of workers early, so that they import the engine while this process does."""
    if not settings.workers or settings.engine != "local" or settings.hosted:
        yield
        return
    from sluiceway.runtime.cluster.interpreter_pool import ahead

    with ahead(settings.workers):
        yield


def _run(
    request: Request,
    settings: Settings,
    no_progress: bool,
    quiet: bool,
    take: int | None,
    savepoint: str | None,
    as_json: bool,
    observation: Observation,
) -> None:
    from sluiceway.api import Pipeline
    from sluiceway.api.results import collect_from, for_a_look
    from sluiceway.cli.manager import manager
    from sluiceway.engine import JobStatus

    plugins = manager()
    engine = plugins.engine(settings.engine)  # a wrong name is told before the pipeline's own code runs
    with load_target(request.target, request.arguments) as target, ExitStack() as stack:
        if savepoint is not None:
            _check_savepoint(engine, target if isinstance(target, Pipeline) else target._pipeline, settings)
        if isinstance(target, Pipeline):
            if take is not None:
                raise click.UsageError(_take_what(target, request.target))
            settings = resumed(settings, target.name, quiet=quiet or as_json)
            job = target.prepare(settings, plugins.services())
            if not (quiet or as_json):
                tell_of_checkpoint(settings, target.name)
                _tell_of_one_process(target, settings)
            go: Callable[[], object] = job.run
        elif settings.resume and request.resolved.origins["resume"] == "--resume":
            raise click.UsageError(
                f"resume ({request.resolved.origins['resume']}) is for a whole Pipeline, and {request.target} is "
                "a stream: leave it out, or override it with --no-resume"
            )
        else:
            settings = for_a_look(settings, checkpoints=request.resolved.origins["checkpoints"] == "--checkpoints")
            records = stack.enter_context(collect_from(target._pipeline, target._inputs, settings))
            job = records.job
            go = partial(_print, records, take)
        pipeline = target if isinstance(target, Pipeline) else target._pipeline
        over = stack.enter_context(observed(job, pipeline.name, observation, as_json=as_json, quiet=quiet))
        code = run_job(
            job, go, settings, no_progress=no_progress, quiet=quiet, as_json=as_json, savepoint=savepoint
        )
        if code == exit_codes.TERMINATED:
            over.set()  # container managers send one signal, and then kill
    if job.status is JobStatus.CANCELED and isinstance(target, Pipeline) and not (quiet or as_json):
        tell_where_to_go_on(settings, target.name)
    if job.status is JobStatus.CANCELED and (take is None or code is not None):
        click.get_current_context().exit(code or exit_codes.CANCELLED)


def _tell_of_one_process(pipeline: Pipeline, settings: Settings) -> None:
    """Print a warning on stderr where subtasks that exchange records by key share one core."""
    if settings.workers or settings.engine != "local":
        return
    from sluiceway.graph.check.pipeline import find_one_process
    from sluiceway.util.machine import usable_cpus

    for finding in find_one_process(pipeline.graph(settings), settings, usable_cpus()):
        say(str(finding), err=True)


def _check_savepoint(engine: Engine, program: Program, settings: Settings) -> None:
    """Raise an error if the engine cannot take the savepoint that a signal would request."""
    from sluiceway.engine.capabilities import Feature
    from sluiceway.graph.check.engine import refuse_command
    from sluiceway.graph.check.features import is_bounded

    graph = program._unfinished_graph(settings)
    refuse_command("--savepoint", Feature.SAVEPOINTS, engine.capabilities(settings, bounded=is_bounded(graph)))


def run_job(
    job: Job,
    go: Callable[[], object],
    settings: Settings,
    *,
    no_progress: bool,
    quiet: bool,
    as_json: bool,
    savepoint: str | None = None,
) -> int | None:
    """Run a job with progress on stderr and with signals that end it. Return the exit code of a signal.

    Args:
        job: the job.
        go: runs it.
        settings: the options of the run.
        no_progress: do not tell how it goes.
        quiet: nor how it has ended.
        as_json: tell in JSON objects.
        savepoint: where signals put a savepoint; None: they cancel the job.
    """
    from sluiceway.api.interrupts import cancel_on_sigint, say_cancelling
    from sluiceway.runtime.jobmanager.checkpoint_places import savepoint_place

    saving = None if savepoint is None else _Saving(job, savepoint_place(savepoint, None))
    with ExitStack() as watching:
        if not (quiet or no_progress):
            watching.enter_context(Progress(job, sys.stderr, as_json=as_json))
        watching.enter_context(metrics_on_stderr(settings.metrics))
        cancel, confirm = (job.cancel, say_cancelling) if saving is None else (saving.stop, _say_saving)
        does = "cancelling" if saving is None else "ending with a savepoint"
        terminated = watching.enter_context(_on_sigterm(cancel, does))
        interrupts = watching.enter_context(cancel_on_sigint(job, cancel=cancel, first=confirm, again=_end_now))
        try:
            go()
            flush()
        except BaseException as error:
            # The reader of the output has left, as head does: no closing line.
            if is_broken_pipe(error):
                quiet = True
            raise
        finally:
            # The live line has to go before others are written.
            watching.close()
            if saving is not None and saving.said:
                say(saving.said, err=True)
            if not quiet:
                say((summary_json if as_json else summary)(job.metrics()), err=True)
    return exit_codes.TERMINATED if terminated else exit_codes.CANCELLED if interrupts.count else None


def _print(records: CloseableIterator[Any], take: int | None) -> None:
    """Print records as they arrive, until the limit is reached."""
    with records, suppress(JobCancelledError):  # the exit code tells
        for record in islice(records, take):
            print(record)


def _take_what(pipeline: Program, target: str) -> str:
    return (
        f"--take ends after the first records of a stream, and {target} is the whole of {pipeline.name!r}: name "
        "the stream, as in FILE:NAME"
    )


class _Saving:
    """Handler of signals that stops a job with a savepoint, once.

    Attributes:
        said: what is to be told of it.
    """

    def __init__(self, job: Job, place: str) -> None:
        # Now: at the signal it is too late to give another place.
        job.check_savepoint(place)
        self._job = job
        self._place = place
        self._asked = False
        self.said = ""

    def stop(self) -> None:
        """Ask for it. From signal handlers."""
        if not self._asked:
            self._asked = True
            self._job.savepoint(self._place, self._done, stop=True)

    def _done(self, location: str, problem: BaseException | None) -> None:
        self.said = f"savepoint: {location}"
        if problem is not None:
            self.said = f"no savepoint: {problem}"
            self._job.cancel()


@contextmanager
def _on_sigterm(cancel: Callable[[], None], does: str) -> Iterator[list[int]]:
    """Call ``cancel`` on SIGTERM, as of container managers, in this context. Gives the signals received."""
    came: list[int] = []

    def handle(number: int, frame: object) -> None:
        came.append(number)
        cancel()
        if len(came) == 1:
            # A function that does not return would keep the process without a word.
            say_from_handler(f"SIGTERM: {does}; SIGKILL ends at once")

    # Python lets no other thread set handlers of signals.
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    old = signal.signal(signal.SIGTERM, handle)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, old)


def _say_saving() -> None:
    say_from_handler("ending with a savepoint; Ctrl-C again ends at once")


def _end_now() -> None:
    say_from_handler("ended at once")
    os._exit(exit_codes.CANCELLED)
