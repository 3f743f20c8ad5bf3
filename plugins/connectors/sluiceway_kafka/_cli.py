"""The command ``sluiceway kafka``: transactions, for people who have to clean up after a job that is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway.util.visible_text import visible_line

if TYPE_CHECKING:
    from sluiceway_kafka._coordinator import Coordinator, Transaction

__all__ = ["kafka"]

_OPEN: Final = ("Ongoing",)


def _with_connection(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a connection, as one argument ``coordinator``."""

    @click.option(
        "--bootstrap-servers",
        "-b",
        "servers",
        metavar="HOST:PORT,...",
        envvar="KAFKA_BOOTSTRAP_SERVERS",
        required=True,
        help="Brokers of the cluster. Default: $KAFKA_BOOTSTRAP_SERVERS.",
    )
    @click.option(
        "--property",
        "properties",
        metavar="NAME=VALUE",
        multiple=True,
        help="Property of the client, such as security.protocol=SASL_SSL; can be repeated.",
    )
    @click.option(
        "--properties-file",
        "file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="File with such properties, one in a line; for passwords, which others see on a command line.",
    )
    @click.option("--timeout", metavar="TIME", default="30s", show_default=True, help="Longest time of a request.")
    @wraps(function)
    def wrapper(servers: str, properties: tuple[str, ...], file: str | None, timeout: str, **given: Any) -> None:
        pairs = {} if file is None else _from_file(Path(file))
        pairs |= dict(_pair(each, "--property") for each in properties)
        with _coordinator(servers, pairs, timeout) as coordinator:
            function(coordinator=coordinator, **given)

    return wrapper


def _from_file(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    return dict(_pair(line, f"{file}, line {number}") for number, line in numbered if line and line[0] not in "#!")


def _pair(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # Not with its text: what is misplaced may be a password.
        raise ConfigurationError(f"{where}: must be NAME=VALUE, such as security.protocol=SASL_SSL")
    return name.strip(), value.strip()


@contextmanager
def _coordinator(servers: str, properties: dict[str, str], timeout: str) -> Iterator[Coordinator]:
    # Imported here: `sluiceway --help` lists the command, and the clients take long to import.
    try:
        from sluiceway_kafka._connection import connection_of
        from sluiceway_kafka._coordinator import Coordinator
    except ImportError as error:
        raise MissingExtraError(f"this needs {error.name}: {install_command('sluiceway[kafka]')}") from error
    coordinator = Coordinator(connection_of(servers, properties, timeout))
    try:
        yield coordinator
    finally:
        coordinator.close()


@click.group(short_help="Inspect and end transactions of Apache Kafka.")
def kafka() -> None:
    """Inspect and end transactions of Apache Kafka."""


@kafka.group(short_help="List, commit and abort transactions.")
def transactions() -> None:
    """List, commit and abort transactions.

    A job ends its own transactions. These commands are for those of a job that is not restored any more: open
    transactions hold back consumers that read committed records until the brokers abort them.
    """


@transactions.command("list", short_help="List transactional ids.")
@click.option("--prefix", default="", metavar="PREFIX", help="List ids that begin with PREFIX only.")
@click.option("--open", "open_only", is_flag=True, help="List open transactions only.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@_with_connection
def list_(coordinator: Coordinator, prefix: str, open_only: bool, as_json: bool) -> None:
    """List transactional ids with state, producer, start, timeout and partitions."""
    ids = [each.transactional_id for each in coordinator.list(prefix)]
    found = [each for each in coordinator.describe(ids).values() if not open_only or each.state in _OPEN]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found]))
        return
    heading = ("ID", "STATE", "PRODUCER", "EPOCH", "STARTED", "TIMEOUT", "PARTITIONS")
    rows = [heading, *(tuple(map(visible_line, _row(each))) for each in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(each: Transaction) -> tuple[str, ...]:
    started = "-"
    if each.started_ms >= 0:
        started = datetime.fromtimestamp(each.started_ms / 1000, UTC).isoformat(" ", "seconds")
    partitions = ", ".join(f"{topic}-{number}" for topic, number in each.partitions)
    return (
        each.transactional_id,
        each.state,
        str(each.producer_id),
        str(each.epoch),
        started,
        f"{each.timeout_ms} ms",
        partitions or "-",
    )


@transactions.command("commit", short_help="Commit an open transaction.")
@click.argument("transactional_id", metavar="ID")
@_with_connection
def commit(coordinator: Coordinator, transactional_id: str) -> None:
    """Commit the open transaction of the transactional id ID.

    Its records become visible, also if no checkpoint names them: a job that is restored later writes them again.
    Some of them can be missing, as nothing says that its producer had sent all.
    """
    _end(coordinator, transactional_id, commit=True)


@transactions.command("abort", short_help="Abort an open transaction.")
@click.argument("transactional_id", metavar="ID")
@_with_connection
def abort(coordinator: Coordinator, transactional_id: str) -> None:
    """Abort the open transaction of the transactional id ID. Its records are lost."""
    _end(coordinator, transactional_id, commit=False)


def _end(coordinator: Coordinator, transactional_id: str, *, commit: bool) -> None:
    found = coordinator.describe([transactional_id]).get(transactional_id)
    if found is None:
        raise ConfigurationError(f"the cluster has no transactional id {transactional_id!r}")
    if found.state not in _OPEN:
        raise ConfigurationError(
            f"transactional id {transactional_id!r} has no open transaction: it is {found.state}"
        )
    version = coordinator.transaction_version()
    failed = coordinator.end(transactional_id, found.producer_id, found.epoch, commit=commit, version=version)
    if failed:
        raise ConnectorError(f"the transaction of {transactional_id!r} has ended meanwhile ({failed})")
    click.echo(f"{transactional_id}: {'committed' if commit else 'aborted'}")
