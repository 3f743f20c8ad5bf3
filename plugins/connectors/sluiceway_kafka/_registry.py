"""Schema registries with Confluent's API: the client, its retries, and a cache of what schemas are made into."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from sluiceway.errors import (
    ConfigurationError,
    ConnectorError,
    MissingExtraError,
    SerializationError,
    SluicewayError,
    SuppressRestartsError,
)
from sluiceway.util.install_hints import install_command
from sluiceway_kafka._connection import check_duration

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

__all__ = [
    "PREFIX_LENGTH",
    "RegistryError",
    "SchemaCache",
    "SchemaPendingError",
    "SchemaRefusedError",
    "SchemaRegistry",
    "cannot",
    "check_libraries",
    "is_not_found",
    "registry_of",
    "request",
]

T = TypeVar("T")

_log: Final = logging.getLogger("sluiceway_kafka.registry")

_OWN: Final = {
    "url": "use the argument url",
    "timeout": "use the argument timeout",
    "max.retries": "use the argument timeout",
    "retries.wait.ms": "use the argument timeout",
    "retries.max.wait.ms": "use the argument timeout",
}

_REQUEST_S: Final = 10.0
"""Time of one request, which may end so much later than all the time for retries."""

_TRIES: Final = 3
"""Requests that have time for an answer each, where the time for retries is long."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0

PREFIX_LENGTH: Final = 5

_MOST_SCHEMAS: Final = 1000
_UNKNOWN_S: Final = 30.0
"""Time after which a schema id that the registry did not know is asked for again."""

_TRANSIENT: Final = frozenset((408, 425, 429, 500, 502, 503, 504))

_NO_ENTRY: Final = frozenset((401, 403, 407))

# Codes of Confluent's API in answers with status 404: subject, version, schema; 40400 by the client in memory.
_NOT_FOUND: Final = frozenset((40400, 40401, 40402, 40403))

# Clients in memory, by URL: readers and writers of a process have the same schemas.
_in_memory: Final[dict[str, SchemaRegistryClient]] = {}


class RegistryError(ConnectorError):
    """The schema registry cannot be reached, or refuses requests. Never the fault of a record."""


class SchemaRefusedError(RegistryError, SuppressRestartsError):
    """The registry refuses a schema, or does not have the one to write with: no restart changes that."""


class RegistryPropertiesError(RegistryError, ConfigurationError):
    """Confluent's client refuses its properties."""


class SchemaPendingError(Exception):
    """A schema is being fetched; ``wake`` is called when it is there."""


def check_libraries(name: str, *modules: str) -> None:
    """Raise an error that says what to install, unless the libraries of a format are there.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    wanted = ("attr", "authlib", "cachetools", "certifi", *modules)
    missing = [module for module in wanted if not _installed(module)]
    if not _installed("httpx2") and not _installed("httpx"):
        missing.append("httpx2")
    if missing:
        raise MissingExtraError(
            f"{name} needs {', '.join(missing)}: {install_command('sluiceway[kafka-registry]')}"
        )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # its parent package is missing, or it is blocked
        return False


class SchemaRegistry:
    """Address of a schema registry with Confluent's API, and how to reach it. Opens nothing by itself.

    A registry that cannot be reached is asked again until ``timeout`` is over; then the job fails with a message
    that names its address. Credentials are not part of messages, plans and logs.

    ``mock://NAME`` is a registry in the memory of the process, for tests.

    Args:
        url: address of the registry, several as a list or separated by commas.
        timeout: how long a registry that cannot be reached is asked again: a timedelta, ms, or a text. One request
            may take a third of it, at least 10 s.
        properties: properties of Confluent's client, such as ``basic.auth.user.info`` (``user:password``) and
            ``ssl.ca.location``.

    Raises:
        ConfigurationError: an argument cannot be used.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout: timedelta | int | str = "30s",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        given = url.split(",") if isinstance(url, str) else list(url)
        if properties is not None and not isinstance(properties, Mapping):
            raise ConfigurationError("properties must be a mapping from names of Confluent's client to values")
        for name in properties or {}:
            if name in _OWN:
                raise ConfigurationError(f"properties may not hold {name!r}: {_OWN[name]}")
        self._properties = dict(properties or {})
        addresses, users = [], []
        for each in given:
            address, user = _without_user(str(each).strip())
            addresses.append(address)
            if user is not None:
                users.append(user)
        if not addresses:
            raise ConfigurationError(f"url={url!r} must be the address of a schema registry")
        # The client would keep them in its URLs, which the HTTP library logs.
        if users and "basic.auth.user.info" in self._properties:
            raise ConfigurationError("credentials are given both in the url and in basic.auth.user.info")
        if len(set(users)) > 1:
            raise ConfigurationError("the addresses of a schema registry must have the same credentials")
        if users:
            self._properties["basic.auth.user.info"] = users[0]
        self._url = ",".join(addresses)
        self._timeout_ms = check_duration("timeout", timeout, 1)

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._url!r})"

    @property
    def url(self) -> str:
        """Its address, without credentials."""
        return self._url

    @property
    def timeout_s(self) -> float:
        """Time for which it is asked again, in seconds."""
        return self._timeout_ms / 1000


def registry_of(registry: str | SchemaRegistry) -> SchemaRegistry:
    """Return the registry that an argument of a format names.

    Raises:
        ConfigurationError: it names none.
    """
    if isinstance(registry, SchemaRegistry):
        return registry
    if not isinstance(registry, str):
        raise ConfigurationError(f"registry={registry!r:.60} must be a URL or a SchemaRegistry")
    return SchemaRegistry(registry)


def _without_user(url: str) -> tuple[str, str | None]:
    """Return an address without credentials, and these."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https", "mock") or not host:
        raise ConfigurationError(f"{url!r} is not the URL of a schema registry, such as http://localhost:8081")
    user, at, place = parts.netloc.rpartition("@")
    address = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    return address, unquote(user) if at else None


def request(
    registry: SchemaRegistry, doing: str, ask: Callable[[SchemaRegistryClient], T], closed: Event | None = None
) -> T:
    """Return the answer of a registry, after retries if it cannot be reached.

    Requests are rare, one or two for each schema, so each has a client of its own, which keeps no connection open.

    Args:
        registry: the registry.
        doing: what is done, for messages: "fetch schema 7".
        ask: makes requests. An answer that is a refusal is raised as Confluent's SchemaRegistryError.
        closed: ends retries when it is set.

    Raises:
        RegistryError: the registry cannot be reached, does not let this client in, or is none; or Confluent's
            client refuses its properties.
        SluicewayError: as ``ask`` raises it.
    """
    with _client(registry) as client:
        return _repeated(registry, doing, lambda: ask(client), closed or Event())


def _repeated(registry: SchemaRegistry, doing: str, ask: Callable[[], T], closed: Event) -> T:
    from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

    deadline = monotonic() + registry.timeout_s
    pause_s = _FIRST_PAUSE_S
    failure: Exception
    while True:
        try:
            return ask()
        except (SchemaRegistryError, *_transport_errors(), OAuthTokenError) as error:
            status = getattr(error, "http_status_code", None)
            if status is not None and status not in _TRANSIENT:
                if status in _NO_ENTRY or status < 400:
                    raise RegistryError(f"{cannot(doing, registry)}: {_describe(error)}") from error
                raise
            failure = error
        except SluicewayError:
            raise
        except Exception as error:
            # Confluent's client takes answers apart without checks: text for JSON, a list for an object.
            raise RegistryError(
                f"{cannot(doing, registry)}: its answer is not one of a schema registry ({error!r:.200})"
            ) from error
        if monotonic() + pause_s > deadline:
            raise RegistryError(
                f"{cannot(doing, registry)}: {_describe(failure)}. It was tried for {registry.timeout_s:g} s"
            ) from failure
        # Once, not with each try.
        if pause_s == _FIRST_PAUSE_S:
            _log.warning("%s: %s; trying again", cannot(doing, registry), _describe(failure))
        if closed.wait(pause_s):
            raise RegistryError(f"{cannot(doing, registry)}: the subtask was closed") from failure
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return errors of the HTTP library that Confluent's client uses: there was no answer."""
    for name in ("httpx2", "httpx"):
        if _installed(name):
            return (import_module(name).TransportError,)
    return ()


def _client(registry: SchemaRegistry) -> AbstractContextManager[SchemaRegistryClient]:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    if registry.url in _in_memory:
        return nullcontext(_in_memory[registry.url])
    configuration = {
        **registry._properties,
        "url": registry.url,
        # A longer timeout also reaches registries that take longer to answer.
        "timeout": max(_REQUEST_S, registry.timeout_s / _TRIES),
        "max.retries": 0,
    }
    try:
        client: SchemaRegistryClient = SchemaRegistryClient.new_client(configuration)
    except Exception as error:
        # The errors of missing files have no names.
        files = {name: place for name, place in registry._properties.items() if name.endswith(".location")}
        of = f" ({', '.join(f'{name}={place!r}' for name, place in files.items())})" if files else ""
        raise RegistryPropertiesError(
            f"the client of the schema registry {registry.url} refuses its properties: {_describe(error)}{of}"
        ) from error
    if registry.url.startswith("mock:"):
        return nullcontext(_in_memory.setdefault(registry.url, client))
    return closing(client)


def cannot(doing: str, registry: SchemaRegistry) -> str:
    """Return the beginning of a message about a registry."""
    return f"cannot {doing} at the schema registry {registry.url}"


def _describe(error: BaseException) -> str:
    return str(error) or type(error).__name__


def is_not_found(error: Exception) -> bool:
    """Return True if a SchemaRegistryError says that a schema, version or subject does not exist.

    An address that is not one of a registry answers 404, too, with another code.
    """
    return getattr(error, "error_code", None) in _NOT_FOUND


class SchemaCache(Generic[T]):
    """Cache of prepared schemas of a registry, by the five bytes at the start of a record. For one thread.

    With ``wake``, schemas are fetched in a thread of the cache's own, so that a registry that cannot be reached
    does not stop the other tasks of the worker.

    Args:
        registry: the registry.
        make: from the client and a schema id to what is kept.
        wake: called, in any thread, when a schema that was pending is there; None: :meth:`get` blocks.

    Attributes:
        known: what was made, by prefix, for a look without a call.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        make: Callable[[SchemaRegistryClient, int], T],
        wake: Callable[[], None] | None,
    ) -> None:
        self.known: dict[bytes, T] = {}
        self._registry = registry
        self._closed = Event()
        self._make = make
        self._wake = wake
        self._unknown: dict[bytes, tuple[float, str]] = {}
        self._pending: bytes | None = None
        self._fetched: tuple[bytes, T | Exception] | None = None

    def get(self, prefix: bytes) -> T:
        """Return what the schema was made into.

        Args:
            prefix: a zero byte and the id of the schema, four bytes.

        Raises:
            SerializationError: this is no such prefix, or the registry has no such schema, or it cannot be used.
            RegistryError: the registry could not be reached.
            SchemaPendingError: it is being fetched.
        """
        if self._fetched is not None:
            (fetched, result), self._fetched, self._pending = self._fetched, None, None
            self._keep(fetched, result)
        if prefix in self.known:
            return self.known[prefix]
        if prefix in self._unknown:
            until, text = self._unknown[prefix]
            if monotonic() < until:
                raise SerializationError(text)
            del self._unknown[prefix]
        if len(prefix) != PREFIX_LENGTH or prefix[0]:
            raise SerializationError(
                f"it begins with {prefix.hex(' ') or 'nothing'}, not with a zero byte and the id of a schema: it "
                "was not written by a serializer that uses a schema registry"
            )
        if self._wake is None:
            self._keep(prefix, self._fetch(prefix))
            return self.get(prefix)
        if self._pending is None:
            self._pending = prefix
            Thread(
                # A request that close() does not interrupt may still take its timeout: as a daemon it keeps no
                # process from ending.
                target=self._fetch_and_wake,
                args=(prefix, self._wake),
                name="sluiceway-kafka-registry",
                daemon=True,
            ).start()
        raise SchemaPendingError

    def close(self) -> None:
        """End a fetch."""
        self._closed.set()

    def _keep(self, prefix: bytes, result: T | Exception) -> None:
        if isinstance(result, SerializationError):
            _make_room(self._unknown)
            self._unknown[prefix] = (monotonic() + _UNKNOWN_S, str(result))
        elif isinstance(result, Exception):
            raise result
        else:
            _make_room(self.known)
            self.known[prefix] = result

    def _fetch_and_wake(self, prefix: bytes, wake: Callable[[], None]) -> None:
        # One assignment, so that the task's thread sees both or none.
        self._fetched = (prefix, self._fetch(prefix))
        wake()

    def _fetch(self, prefix: bytes) -> T | Exception:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        schema_id = int.from_bytes(prefix[1:], "big")
        doing = f"fetch the schema with id {schema_id}"
        try:
            return request(self._registry, doing, lambda client: self._make(client, schema_id), self._closed)
        except SchemaRegistryError as error:
            if is_not_found(error):
                return SerializationError(
                    f"the schema registry {self._registry.url} has no schema with id {schema_id}: {error}"
                )
            failure = RegistryError(f"{cannot(doing, self._registry)}: {error}")
            failure.__cause__ = error
            return failure
        except Exception as error:
            return error


def _make_room(cache: dict[bytes, Any]) -> None:
    """Remove the entry that was made first from a cache that is full."""
    if len(cache) >= _MOST_SCHEMAS:
        del cache[next(iter(cache))]
