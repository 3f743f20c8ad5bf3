"""Command line options of a web interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from sluiceway.monitoring.web_server import WebOptions

__all__ = ["options_of", "parse_address", "refuse_without_web", "web_options"]

_PORT: Final = 8081

C = TypeVar("C", bound=Callable[..., Any])


def web_options(command: C) -> C:
    """Add the options of a web server to a command, which takes them as ``web`` keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: Final = (
    click.option(
        "--web-address",
        metavar="[HOST:]PORT",
        help="Address of the web interface. Default: 127.0.0.1:8081, or a free port if that is taken.",
    ),
    click.option("--web-certificate", metavar="FILE", help="PEM file with a TLS certificate for it."),
    click.option("--web-key", metavar="FILE", help="PEM file with the private key of that certificate."),
    click.option(
        "--web-root-path", metavar="PATH", default="", help="Path under which a proxy offers the web interface."
    ),
    click.option(
        "--web-behind-proxy", is_flag=True, help="A proxy does TLS and checks host names: accept plain HTTP."
    ),
    click.option("--web-read-only", is_flag=True, help="Do not let the web interface cancel or stop jobs."),
)


def parse_address(text: str | None) -> tuple[str, int, bool]:
    """Return host, port, and True if the port was not given. Raises click.BadParameter."""
    if text is None:
        return "127.0.0.1", _PORT, True
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is no address: give PORT or HOST:PORT", param_hint="--web-address")
    return host, int(port), False


def options_of(
    web_address: str | None,
    web_certificate: str | None,
    web_key: str | None,
    web_root_path: str,
    web_behind_proxy: bool,
    web_read_only: bool,
) -> WebOptions:
    """Return the options of a web server with a new token."""
    import secrets  # every 'sluiceway run' imports this module

    from sluiceway.monitoring.web_server import WebOptions

    host, port, any_port = parse_address(web_address)
    return WebOptions(
        host=host,
        port=port,
        any_port=any_port,
        token=secrets.token_urlsafe(24),
        certificate=web_certificate or "",
        key=web_key or "",
        root_path=web_root_path,
        behind_proxy=web_behind_proxy,
        read_only=web_read_only,
    )


def refuse_without_web(given: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option of the web interface is given without ``--web``."""
    for name, value in given.items():
        if value:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --web")
