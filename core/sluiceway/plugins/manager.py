"""The plugin manager: finds plugins, keeps a broken one from taking the others down, gives out what they offer."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import Distribution
from importlib.util import find_spec
from reprlib import Repr
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

import msgspec
import pluggy
from pluggy import HookImpl

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import Clock
from sluiceway.engine import Engine, Services
from sluiceway.errors import MissingExtraError, PluginError, SluicewayError, UnknownNameError, choose
from sluiceway.hooks import PROJECT, Offer
from sluiceway.plugins import hookspecs
from sluiceway.plugins.discovery import find_plugins
from sluiceway.plugins.kinds import (
    CHECKPOINT_STORAGE,
    CLI_COMMAND,
    CONNECTOR,
    ENGINE,
    KINDS,
    METRICS_REPORTER,
    PARTITIONER,
    SERIALIZER,
    STATE_BACKEND,
    TRANSPORT,
    WEB_SERVER,
    Kind,
)
from sluiceway.util.install_hints import install_command

if TYPE_CHECKING:
    import click

    from sluiceway.connector import Connector
    from sluiceway.serializers import Serializer

__all__ = ["Offered", "Plugin", "PluginManager", "Problem", "default_manager"]

T = TypeVar("T")

DISABLE = "SLUICEWAY_DISABLE_PLUGINS"
TRACE = "SLUICEWAY_TRACE_PLUGINS"

# Texts of what plugins return by mistake, which may be of any size, or raise.
_REPR: Final = Repr()
_REPR.maxother = _REPR.maxstring = 200


class Plugin(msgspec.Struct, frozen=True):
    """A plugin that was found.

    Attributes:
        name: name of its entry point.
        target: what the entry point points to.
        distribution: the distribution that declares it; empty for one registered by hand.
        version: version of the distribution.
        state: ``loaded``, ``disabled`` or ``broken``.
    """

    name: str
    target: str
    distribution: str
    version: str
    state: str = "loaded"

    @property
    def origin(self) -> str:
        """Distribution and version for messages: ``sluiceway-mqtt 1.2``."""
        return f"{self.distribution} {self.version}".strip() or "registered by the program"

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.origin})"


class Problem(msgspec.Struct, frozen=True):
    """Something about a plugin that people should know, and that did not stop the others.

    Attributes:
        plugin: name of the plugin, or empty where no single one is to blame.
        message: what is wrong and what to do.
        cause: the exception behind it, if there is one.
    """

    plugin: str
    message: str
    cause: BaseException | None = None


class Offered(msgspec.Struct, frozen=True):
    """An offer and who made it.

    Attributes:
        kind: what it is.
        offer: the offer.
        plugin: the plugin that made it.
        rivals: other plugins that offer the same kind under the same name.
    """

    kind: Kind
    offer: Offer
    plugin: Plugin
    rivals: tuple[Plugin, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind.word} {self.offer.name!r}"

    @property
    def missing(self) -> list[str]:
        """The third-party modules that it needs and that are not installed."""
        return [name for name in self.offer.requires if not _installed(name)]

    @property
    def absent(self) -> list[str]:
        """The third-party modules that are not installed, those too that only its use needs."""
        return [*self.missing, *(name for name in self.offer.libraries if not _installed(name))]

    @property
    def install(self) -> str:
        """The command that installs what it needs, or nothing where the offer does not say."""
        what = self.offer.extra
        if what and self.plugin.distribution == PROJECT:
            what = f"{PROJECT}[{what}]"
        return install_command(what) if what else ""


class PluginManager:
    """Registry that finds the plugins, once, and loads what they offer.

    The entry points are read and the plugins' modules imported at the first question; what an offer's
    ``load`` imports, only when its name is asked for. All methods may be called from any thread.

    Pickled, it becomes that of the process in which it is unpickled.

    Args:
        environ: where ``SLUICEWAY_DISABLE_PLUGINS`` (names of plugins, with commas) and
            ``SLUICEWAY_TRACE_PLUGINS=1`` (tell on stderr of every hook call) are looked up.
        report: told of each problem as it comes up; None: a warning of the logger ``sluiceway.plugins``.
        installed: the distributions to search; None: all on ``sys.path``.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        report: Callable[[Problem], None] | None = None,
        installed: Iterable[Distribution] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self.report: Callable[[Problem], None] = report or _log
        self._disabled = [n for n in (part.strip() for part in environ.get(DISABLE, "").split(",")) if n]
        self._tracing = environ.get(TRACE, "") not in ("", "0")
        self._installed = installed
        self._lock = threading.RLock()
        self._loaded = False
        self._pluggy = _new_pluggy()
        self._plugins: dict[str, Plugin] = {}  # by the name pluggy knows them by
        self._problems: dict[str, Problem] = {}
        self._offers: dict[Kind, list[Offered]] = {}
        self._factories: dict[tuple[Kind, str], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return default_manager, ()

    # -- plugins -------------------------------------------------------------------------------------------

    @property
    def plugins(self) -> list[Plugin]:
        """All plugins that were found, by name."""
        self.load()
        return sorted(self._plugins.values(), key=lambda p: (p.name, p.distribution))

    def folders(self) -> Iterator[str]:
        """Yield the folders of the plugins' packages, with a separator at the end: frames there are no user's."""
        for plugin in self.plugins:
            module = sys.modules.get(plugin.target.partition(":")[0])
            yield from (folder + os.sep for folder in getattr(module, "__path__", ()))

    @property
    def problems(self) -> list[Problem]:
        """Problems found so far."""
        return list(self._problems.values())

    def load(self) -> None:
        """Find and import the plugins; nothing the second time."""
        with self._lock:
            if self._loaded:
                return
            # Before the search: whoever is told of a problem may ask for plugins.
            self._loaded = True
            try:
                self._find()
            except BaseException:
                # Ctrl-C: the next question begins anew, else the process would be without plugins for good.
                self._loaded = False
                self._pluggy = _new_pluggy()
                self._plugins.clear()
                self._offers.clear()
                raise

    def _find(self) -> None:
        began = perf_counter()
        from sluiceway.plugins import builtin

        found = list(find_plugins(lambda text: self._problem("", text), self._installed))
        # The built-in plugin is as old as the distribution that it is part of.
        version = next((f.version for f in found if f.distribution == PROJECT), "")
        self._take(Plugin("core", builtin.__name__, PROJECT, version), lambda: builtin)
        for f in found:
            self._take(Plugin(f.name, f.target, f.distribution, f.version), f.load)
        self._check_disabled()
        self._trace(f"{len(self._plugins)} plugins found", began)

    def register(self, plugin: object, name: str) -> None:
        """Add a plugin that no distribution declares, say in a test or a notebook.

        Args:
            plugin: a module, or an object with methods, that implements hooks.
            name: what messages call it; one that was registered under it before is replaced, as by a cell of a
                notebook that runs again.
        """
        with self._lock:
            self.load()
            self._offers.clear()
            self._factories.clear()
            if self._pluggy.has_plugin(f":{name}"):
                self._pluggy.unregister(name=f":{name}")
            self._take(Plugin(name, getattr(plugin, "__name__", type(plugin).__name__), "", ""), lambda: plugin)

    def _take(self, plugin: Plugin, load: Callable[[], object]) -> None:
        key = f"{plugin.distribution}:{plugin.name}"
        self._plugins[key] = plugin
        if plugin.name in self._disabled:
            self._plugins[key] = msgspec.structs.replace(plugin, state="disabled")
            return
        began = perf_counter()
        try:
            implementation = load()
            self._pluggy.register(implementation, key)
        except KeyboardInterrupt:
            raise
        # Anything else: sys.exit() while it is imported, or a panic of a library in Rust, which is no Exception.
        except BaseException as error:
            # register() may fail after the plugin was taken in.
            if self._pluggy.has_plugin(key):
                self._pluggy.unregister(name=key)
            self._plugins[key] = msgspec.structs.replace(plugin, state="broken")
            self._problem(plugin.name, f"{plugin} is left out: {_say(error)}. {_remedy(plugin)}", error)
            return
        self._trace(f"import {plugin.name!r} ({plugin.target})", began)
        self._check_hooks(plugin, implementation)

    def _check_hooks(self, plugin: Plugin, implementation: object) -> None:
        known = [n for n in dir(hookspecs) if n.startswith(f"{PROJECT}_")]
        for caller in self._pluggy.get_hookcallers(implementation) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is not implementation:
                    continue
                if not caller.has_spec() and not impl.optionalhook:
                    close = get_close_matches(caller.name, known, n=1)
                    hint = f" Did you mean {close[0]!r}?" if close else ""
                    self._problem(
                        plugin.name, f"{plugin} implements {caller.name!r}, which is no hook of ours.{hint}"
                    )
                elif impl.wrapper or impl.hookwrapper:
                    self._problem(
                        plugin.name, f"{plugin} implements {caller.name!r} as a wrapper, which is never called"
                    )

    def _check_disabled(self) -> None:
        known = sorted({p.name for p in self._plugins.values()})
        for name in self._disabled:
            if name not in known:
                self._problem("", f"{DISABLE}: {choose('plugin', name, known)}")

    # -- hooks ---------------------------------------------------------------------------------------------

    def implementations(self, hook: str) -> list[tuple[Plugin, HookImpl]]:
        """Return the plugins that implement a hook, in the order of calls."""
        self.load()
        impls: list[HookImpl] = getattr(self._pluggy.hook, hook).get_hookimpls()
        # pluggy keeps implementations in the reverse order of calls.
        return [(self._plugins[i.plugin_name], i) for i in reversed(impls) if not (i.wrapper or i.hookwrapper)]

    def call(self, plugin: Plugin, impl: HookImpl, arguments: Mapping[str, Any]) -> tuple[bool, Any]:
        """Call one plugin's implementation of a hook, guarded.

        Returns:
            whether it returned, and what.
        """
        began = perf_counter()
        hook = impl.function.__name__
        # Our own loop, not pluggy's: that one stops at the first plugin that raises.
        try:
            result = impl.function(*(arguments[name] for name in impl.argnames))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._problem(
                plugin.name,
                f"{plugin}: its hook {hook} failed: {_say(error)}. {_remedy(plugin)}",
                error,
                once=f"{plugin} {hook}",  # a life-cycle hook that fails, fails for every subtask
            )
            self._trace(f"{hook} of {plugin.name!r} raised {_say(error)}", began)
            return False, None
        if self._tracing:
            told = ", ".join(f"{k}={_REPR.repr(v)}" for k, v in arguments.items())
            given = ", ".join(o.name for o in result) if _are_offers(result) else _REPR.repr(result)
            self._trace(f"{hook}({told}) of {plugin.name!r} -> {given}", began)
        return True, result

    # -- offers --------------------------------------------------------------------------------------------

    def offers(self, kind: Kind) -> list[Offered]:
        """Return everything of one kind that is offered, by name; two of one name are both there."""
        with self._lock:
            if kind not in self._offers:
                made = sorted(self._ask(kind), key=lambda o: (o.offer.name, o.plugin.name, o.plugin.distribution))
                self._offers[kind] = [
                    Offered(
                        kind,
                        o.offer,
                        o.plugin,
                        tuple(r.plugin for r in made if r is not o and r.offer.name == o.offer.name),
                    )
                    for o in made
                ]
            return list(self._offers[kind])

    def all_offers(self) -> list[Offered]:
        """Return everything that is offered, kind by kind."""
        return [offered for kind in KINDS for offered in self.offers(kind)]

    def _ask(self, kind: Kind) -> Iterator[Offered]:
        for plugin, impl in self.implementations(kind.hook):
            returned, result = self.call(plugin, impl, {})
            if returned and not _are_offers(result):
                self._problem(
                    plugin.name,
                    f"{plugin}: its hook {kind.hook} returned {_REPR.repr(result)}, which is no list of "
                    f"sluiceway.hooks.Offer with a name and a load function each. {_remedy(plugin)}",
                )
            elif returned:
                for offer in result:
                    offered = Offered(kind, offer, plugin)
                    if flaw := _flaw(offer):
                        self._problem(plugin.name, f"{offered} of {plugin} is left out: {flaw}. {_remedy(plugin)}")
                    else:
                        yield offered

    def find(self, kind: Kind, name: str) -> Offered:
        """Return the one offer of that name.

        Raises:
            UnknownNameError: nobody offers it.
            PluginError: more than one plugin does.
        """
        offers = self.offers(kind)
        found = [o for o in offers if o.offer.name == name]
        if not found:
            raise self._unknown(kind, name, offers)
        if len(found) > 1:
            who = " and by ".join(str(o.plugin) for o in found)
            name = found[-1].plugin.name
            # Of plugins of one name, the variable would leave out all.
            alone = all(o.plugin.name != name for o in found[:-1])
            remedy = f"Uninstall one, or set {DISABLE}={name}" if alone else "Uninstall one"
            raise PluginError(f"{found[0]} is offered more than once: by {who}. {remedy}")
        return found[0]

    def _unknown(self, kind: Kind, name: str, offers: list[Offered]) -> UnknownNameError:
        error = choose(kind.word, name, {o.offer.name for o in offers})
        absent = [f"{p.name!r} ({p.state})" for p in self.plugins if p.state != "loaded"]
        return UnknownNameError(f"{error}. Plugins that were left out: {', '.join(absent)}") if absent else error

    def factory(self, kind: Kind, name: str) -> Any:
        """Return the object that the offer of that name loads; it is loaded once.

        Raises:
            UnknownNameError: nobody offers it.
            MissingExtraError: a third-party library is missing; says what to install.
            PluginError: more than one plugin offers it, or loading failed.
        """
        with self._lock:
            if (kind, name) not in self._factories:
                offered = self.find(kind, name)
                if missing := offered.missing:
                    raise _missing(offered, missing)
                began = perf_counter()
                try:
                    factory = offered.offer.load()
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    absent = getattr(error, "name", None) if isinstance(error, ImportError) else None
                    if absent and absent.partition(".")[0] in {
                        r.partition(".")[0] for r in offered.offer.requires
                    }:
                        raise _missing(offered, [absent]) from error
                    raise PluginError(f"{offered} of {offered.plugin} cannot be loaded: {_say(error)}") from error
                self._trace(f"load {offered} of {offered.plugin.name!r}", began)
                self._factories[kind, name] = factory
            return self._factories[kind, name]

    def make(self, kind: Kind, name: str, promised: type[T], *arguments: object) -> T:
        """Make one.

        Args:
            kind: what it is.
            name: what it is called.
            promised: the contract that it must implement.
            arguments: what the factory takes.

        Raises:
            PluginError: what the plugin made is not that, or making it raised another error than Sluiceway's
                and those of the system; and what :meth:`factory` raises.
        """
        offered = self.find(kind, name)
        factory = self.factory(kind, name)
        _check_callable(offered, factory)
        try:
            made = factory(*arguments)
        except (SluicewayError, OSError, MemoryError, KeyboardInterrupt):
            raise  # what a restart may cure stays what it is
        except BaseException as error:
            raise PluginError(f"{offered} of {offered.plugin} cannot be made: {_say(error)}") from error
        return _promised(offered, made, promised)

    def check(self, kind: Kind, name: str) -> None:
        """Load an offer, and check its type as far as that can be told before one is made.

        Raises:
            PluginError: it cannot be used; and what :meth:`factory` raises.
        """
        by_name = {CONNECTOR: self.connector, SERIALIZER: self.serializer, CLI_COMMAND: self.command}
        if kind in by_name:
            by_name[kind](name)
            return
        offered, factory = self.find(kind, name), self.factory(kind, name)
        _check_callable(offered, factory)
        promised = _contracts()[kind]
        # With a __new__ of its own, a class may make anything.
        if not isinstance(factory, type) or any("__new__" in vars(c) for c in factory.__mro__ if c is not object):
            return
        if not issubclass(factory, promised):
            raise PluginError(
                f"{offered} of {offered.plugin} is a {factory.__name__}, not a "
                + " or a ".join(map(_public_name, promised))
            )
        if lacking := sorted(getattr(factory, "__abstractmethods__", ())):
            raise PluginError(f"{offered} of {offered.plugin}: {factory.__name__} lacks {', '.join(lacking)}")

    # -- by kind -------------------------------------------------------------------------------------------

    def engine(self, name: str) -> Engine:
        """Return a new engine. This and the following raise what :meth:`make` and :meth:`factory` raise."""
        return self.make(ENGINE, name, Engine)  # type: ignore[type-abstract]

    def checkpoint_storage(self, location: str) -> CheckpointStorage:
        """Return a new checkpoint storage at a path or URL: that of the URL's scheme, or ``filesystem``."""
        scheme, separator, _ = location.partition("://")
        offered = {o.offer.name for o in self.offers(CHECKPOINT_STORAGE)}
        name = scheme if separator and scheme in offered else "filesystem"
        return self.make(CHECKPOINT_STORAGE, name, CheckpointStorage, location)  # type: ignore[type-abstract]

    def connector(self, name: str) -> Connector:
        """Return the connector of that name: its source and sink classes."""
        from sluiceway.connector import Connector

        return _promised(self.find(CONNECTOR, name), self.factory(CONNECTOR, name), Connector)

    def serializer(self, name: str) -> Serializer:
        """Return the serializer of that name."""
        from sluiceway.serializers import Serializer

        made = self.factory(SERIALIZER, name)
        return _promised(self.find(SERIALIZER, name), made, Serializer)  # type: ignore[type-abstract]

    def command(self, name: str) -> click.Command:
        """Return the command of that name."""
        import click

        made = self.factory(CLI_COMMAND, name)
        return _promised(self.find(CLI_COMMAND, name), made, click.Command)

    def register_serializers(self) -> None:
        """Have the plugins' serializers asked before the built-in ones. One that lacks its library is left out.

        Raises:
            PluginError: one is broken, or goes by a name that is taken: leaving it out would change how state
                is written.
        """
        from sluiceway.serializers import register_serializer

        for offered in self.offers(SERIALIZER):
            if offered.missing:
                continue
            serializer = self.serializer(offered.offer.name)
            if serializer.name != offered.offer.name:
                raise PluginError(
                    f"{offered} of {offered.plugin} calls itself {serializer.name!r}: snapshots go by that name, "
                    "so offer it under the same"
                )
            try:
                register_serializer(serializer)
            except ValueError as error:
                raise PluginError(f"{offered} of {offered.plugin}: {error}") from error

    def services(self, clock: Clock | None = None) -> Services:
        """Return the services for engines, and register the plugins' serializers.

        Args:
            clock: what jobs are to run by; None: the machine's.

        Raises:
            PluginError: a plugin's serializer cannot be used.
        """
        from sluiceway.plugins.services import PluginServices

        self.register_serializers()
        return PluginServices(self, clock)

    # -- telling -------------------------------------------------------------------------------------------

    def _problem(self, plugin: str, message: str, cause: BaseException | None = None, once: str = "") -> None:
        with self._lock:
            if (once or message) in self._problems:
                return
            problem = self._problems[once or message] = Problem(plugin, message, cause)
        if self._tracing and cause is not None:
            from sluiceway.runtime.failures.error_texts import format_error

            print(format_error(cause), file=sys.stderr)
        self.report(problem)

    def _trace(self, text: str, began: float) -> None:
        if self._tracing:
            print(f"sluiceway plugins: {text} [{(perf_counter() - began) * 1e3:.1f} ms]", file=sys.stderr)


def _new_pluggy() -> pluggy.PluginManager:
    made = pluggy.PluginManager(PROJECT)
    made.add_hookspecs(hookspecs)
    return made


def _installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing, or is half imported
        return False
    except KeyboardInterrupt:
        raise
    except BaseException:  # a parent package is broken: whoever imports it is told how
        return True


def _missing(offered: Offered, missing: list[str]) -> MissingExtraError:
    # Without an extra to name, the modules' own names are the best guess there is.
    command = offered.install or install_command(*(m.partition(".")[0] for m in missing))
    return MissingExtraError(f"{offered} needs {' and '.join(missing)}: {command}")


def _promised(offered: Offered, made: object, promised: type[T]) -> T:
    if not isinstance(made, promised):
        raise PluginError(
            f"{offered} of {offered.plugin} is a {type(made).__name__}, not a {_public_name(promised)}"
        )
    return made


def _check_callable(offered: Offered, factory: object) -> None:
    if not callable(factory):
        raise PluginError(
            f"{offered} of {offered.plugin}: load() returned {_REPR.repr(factory)}, "
            "which cannot be called to make one"
        )


def _contracts() -> dict[Kind, tuple[type[object], ...]]:
    """Return what the factories of a kind may make."""
    from sluiceway.metrics import MetricsReporter
    from sluiceway.monitoring.web_server import WebServer
    from sluiceway.partitioner import Partitioner
    from sluiceway.state import StateBackend
    from sluiceway.transport import Transport
    from sluiceway.transport.carrier import Carrier

    return {
        STATE_BACKEND: (StateBackend,),
        TRANSPORT: (Transport, Carrier),
        PARTITIONER: (Partitioner,),
        METRICS_REPORTER: (MetricsReporter,),
        CHECKPOINT_STORAGE: (CheckpointStorage,),
        ENGINE: (Engine,),
        WEB_SERVER: (WebServer,),
    }


def _public_name(contract: type[object]) -> str:
    """Return the public name: that of the package which exports it, not of the module inside."""
    package = contract.__module__
    while "." in package:
        above, _, _ = package.rpartition(".")
        if getattr(sys.modules.get(above), contract.__name__, None) is not contract:
            break
        package = above
    return f"{package}.{contract.__name__}"


def _are_offers(result: object) -> TypeGuard[Sequence[Offer]]:
    return isinstance(result, (list, tuple)) and all(
        isinstance(o, Offer) and isinstance(o.name, str) and o.name and callable(o.load) for o in result
    )


def _flaw(offer: Offer) -> str:
    """Return which field of an offer cannot be used, and why; empty if all can."""
    for field in ("summary", "extra"):
        if not isinstance(value := getattr(offer, field), str):
            return f"its {field} is {_REPR.repr(value)}, which is no text"
    for field in ("requires", "libraries"):
        value = getattr(offer, field)
        # A text is a sequence of texts, too: requires=("tidelib") names seven modules.
        if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
            return f"its {field} is {_REPR.repr(value)}, which is no tuple of the names of modules"
    return ""


def _say(error: BaseException) -> str:
    # Imported here: most processes have no broken plugin.
    from sluiceway.runtime.failures.error_texts import describe

    return describe(error)


def _remedy(plugin: Plugin) -> str:
    return f"Repair or uninstall it, or set {DISABLE}={plugin.name}; {TRACE}=1 shows where it happens"


def _log(problem: Problem) -> None:
    import logging

    logging.getLogger("sluiceway.plugins").warning("%s", problem.message)


_default: PluginManager | None = None
_default_lock = threading.Lock()


def default_manager() -> PluginManager:
    """Return the process's own plugin manager, made when it is first asked for."""
    global _default
    with _default_lock:
        if _default is None:
            _default = PluginManager()
        return _default
