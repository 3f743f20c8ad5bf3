"""The command ``sluiceway``: finds the sub-command, turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import StringIO
from typing import Any, Final

import click

from sluiceway import exit_codes
from sluiceway.cli import errors, habits, output
from sluiceway.cli.groups import Group
from sluiceway.cli.output import say
from sluiceway.errors import PluginError

__all__ = ["App", "app"]

COMMANDS: Final = {
    "run": "sluiceway.cli.run:run",
    "explain": "sluiceway.cli.explain:explain",
    "check": "sluiceway.cli.check:check",
    "plugins": "sluiceway.cli.plugins:plugins",
    "cluster": "sluiceway.cli.cluster:cluster",
    "submit": "sluiceway.cli.cluster:submit",
    "list": "sluiceway.cli.cluster:list_jobs",
    "cancel": "sluiceway.cli.cluster:cancel",
    "checkpoints": "sluiceway.cli.checkpoints:checkpoints",
    "savepoint": "sluiceway.cli.savepoints:savepoint",
    "diff": "sluiceway.cli.diff:diff",
    "state": "sluiceway.cli.state:state",
    "dlq": "sluiceway.cli.dlq:dlq",
    "logs": "sluiceway.cli.logs:logs",
    "top": "sluiceway.cli.top:top",
    "web": "sluiceway.cli.web:web",
    "why-slow": "sluiceway.cli.why:why_slow",
    "why-late": "sluiceway.cli.why:why_late",
    "why-lost": "sluiceway.cli.why:why_lost",
    "hot-keys": "sluiceway.cli.hot_keys:hot_keys",
    "flamegraph": "sluiceway.cli.flamegraph:flamegraph",
    "thread-dump": "sluiceway.cli.processes:thread_dump",
    "stop": "sluiceway.cli.cluster:stop_job",
    "rescale": "sluiceway.cli.rescale:rescale",
    "config": "sluiceway.cli.config:config",
    "new": "sluiceway.cli.new:new",
    "version": "sluiceway.cli.version:version",
}
"""Module of each command, imported on demand."""


class App(Group):
    """Group that imports a command when it is used, and plugins only for unknown commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our commands, then the plugins'."""
        from sluiceway.cli.manager import manager
        from sluiceway.plugins.kinds import CLI_COMMAND

        theirs = {o.offer.name for o in manager().offers(CLI_COMMAND)}
        return [*COMMANDS, *sorted(theirs - COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command
        return self._plugin_command(cmd_name)

    def _plugin_command(self, name: str) -> click.Command | None:
        from sluiceway.cli.manager import manager
        from sluiceway.errors import UnknownNameError

        try:
            return manager().command(name)
        except UnknownNameError:
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands for ``--help``; one that a plugin cannot load is listed with the reason."""
        rows = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
            except PluginError as error:
                rows.append((name, f"(not available: {error})"))
                continue
            if command is not None and not command.hidden:
                rows.append((name, _short_help(command)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Explain the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in exit_codes.EXPLAINED.items()])

    def other_hint(self, name: str) -> str:
        """Somebody who gives a file wants it run, and other programs have other commands."""
        if name in habits.COMMANDS:
            return f"Did you mean 'sluiceway {habits.COMMANDS[name]}'?"
        is_file = name.endswith(".py") or os.path.exists(name)
        return f"To run a pipeline: sluiceway run {name}" if is_file else ""

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what it raises becomes a message on stderr and an exit code."""
        try:
            super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except SystemExit:
            raise
        except BaseException as error:  # a program may raise one of its own while it is loaded
            if output.is_broken_pipe(error):
                ctx.exit(exit_codes.BROKEN_PIPE)
            ctx.exit(errors.report(error, ctx))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, with our exit codes; ends in SystemExit."""
        try:
            code = super().main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
            # Here, where a broken pipe still has an exit code; the interpreter would print a traceback.
            output.flush()
        except click.ClickException as error:
            told = StringIO()
            error.show(told)
            say(told.getvalue().removesuffix("\n"), err=True)
            code = exit_codes.USAGE
        except click.Abort:
            code = exit_codes.CANCELLED
        except BrokenPipeError:
            code = exit_codes.BROKEN_PIPE
        except OSError as error:
            if not output.is_unwritable(error):
                raise
            say(f"error: cannot print: {error}", err=True)
            output.forget_stdout()
            code = exit_codes.OUTSIDE
        if code == exit_codes.BROKEN_PIPE:
            output.forget_stdout()
        sys.exit(code or exit_codes.OK)


def _short_help(command: click.Command) -> str:
    try:
        return command.get_short_help_str(80)
    except Exception as error:  # a plugin's command may have any object as its help
        return f"(its help cannot be shown: {type(error).__name__})"


def _show_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        from sluiceway.cli.version import version

        ctx.invoke(version, as_json=False)
        ctx.exit()


@click.group(cls=App, name="sluiceway")
@click.option(
    "--version",
    "-v",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def app() -> None:
    """Stateful stream processing for Python: run, explain and check pipelines."""
