"""Command line options of a web interface."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from sluiceway.monitoring.web_server import WebOptions

__all__ = ["options_of", "parse_address", "refuse_without_web", "submit_option", "web_options"]

_PORT: Final = 8081
_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 512

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
    click.option(
        "--web-token-file",
        metavar="FILE",
        help="File with the token, made if it is not there. Default: a new token at each start.",
    ),
    click.option("--web-read-only", is_flag=True, help="Do not let the web interface cancel or stop jobs."),
)


submit_option: Final = click.option(
    "--web-submit",
    is_flag=True,
    help="Let the web interface submit programs: whoever has its token may then run code as this user.",
)
"""Option of a web server over a cluster."""


def parse_address(text: str | None) -> tuple[str, int, bool]:
    """Return host, port, and True if the port was not given. Raises click.BadParameter."""
    if text is None:
        return "127.0.0.1", _PORT, True
    host, _, port = text.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise click.BadParameter(
            f"{text!r} has an IPv6 address without brackets: give [HOST]:PORT, as in [::1]:{_PORT}",
            param_hint="--web-address",
        )
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is no address: give PORT or HOST:PORT", param_hint="--web-address")
    return host, int(port), False


def _parse_root_path(text: str) -> str:
    """Return a path to put between the address and the paths of the server. Raises click.BadParameter."""
    # It is a part of links, and the path of a cookie.
    if not re.fullmatch(r"(/[\w.~!$&'()*+=:@%-]+)*/?", text, re.ASCII):
        raise click.BadParameter(
            f"{text!r} is no path of a URL: give one such as /proxy/{_PORT}", param_hint="--web-root-path"
        )
    return text


def options_of(
    web_address: str | None,
    web_certificate: str | None,
    web_key: str | None,
    web_root_path: str,
    web_behind_proxy: bool,
    web_token_file: str | None,
    web_read_only: bool,
    web_submit: bool = False,
) -> WebOptions:
    """Return the options of a web server, with the token of the file or a new one. Raises ConfigurationError."""
    from sluiceway.monitoring.web_server import WebOptions

    if web_submit and web_read_only:
        raise click.UsageError("--web-submit and --web-read-only contradict each other: give one")
    host, port, any_port = parse_address(web_address)
    return WebOptions(
        host=host,
        port=port,
        any_port=any_port,
        token=_token(web_token_file),
        certificate=web_certificate or "",
        key=web_key or "",
        root_path=_parse_root_path(web_root_path),
        behind_proxy=web_behind_proxy,
        read_only=web_read_only,
        submit=web_submit,
    )


def _token(path: str | None) -> str:
    import secrets  # every 'sluiceway run' imports this module

    from sluiceway.errors import ConfigurationError
    from sluiceway.util.private_files import private_opener

    new = secrets.token_urlsafe(24)
    if path is None:
        return new
    try:
        with open(path, "x", opener=private_opener) as file:
            file.write(new + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(f"--web-token-file {path} cannot be made: {error.strerror or error}") from error
    else:
        return new
    try:
        mode = os.stat(path).st_mode
        with open(path) as file:
            token = file.read(_LONGEST_TOKEN + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--web-token-file {path} cannot be read: {error}") from error
    if mode & 0o077:
        raise ConfigurationError(
            f"others than you may read or write --web-token-file {path}, and whoever has the token can end jobs: "
            f"chmod 600 {path}"
        )
    if not (_SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN and re.fullmatch(r"[\w.~-]+", token, re.ASCII)):
        raise ConfigurationError(
            f"--web-token-file {path} does not have {_SHORTEST_TOKEN} to {_LONGEST_TOKEN} letters, digits, '-', "
            "'_', '.' and '~' in it; without the file a new token is made"
        )
    return token


def refuse_without_web(given: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option of the web interface is given without ``--web``."""
    for name, value in given.items():
        if value:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --web")
