"""Groups of commands that, given a wrong one, say which was meant."""

from __future__ import annotations

from difflib import get_close_matches

import click

__all__ = ["Group"]


class Group(click.Group):
    """As click's; click itself says it only in its later versions."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        close = get_close_matches(name, self.list_commands(ctx), n=1)
        hint = self.other_hint(name) or (f"Did you mean {close[0]!r}?" if close else "")
        raise click.UsageError(f"there is no command {name!r}. {hint}".rstrip(), ctx)

    def other_hint(self, name: str) -> str:
        """Return a hint for ``name`` that replaces the list of commands with a similar spelling."""
        return ""
