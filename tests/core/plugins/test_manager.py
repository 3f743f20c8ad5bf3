"""Finding plugins, and living with bad ones."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from sluiceway.engine import Engine
from sluiceway.errors import ConfigurationError, MissingExtraError, PluginError, UnknownNameError
from sluiceway.hooks import Offer, hookimpl
from sluiceway.metrics import MetricsReporter
from sluiceway.plugins import PluginManager, Problem, default_manager
from sluiceway.plugins.kinds import CLI_COMMAND, KINDS, METRICS_REPORTER, STATE_BACKEND, TRANSPORT
from sluiceway.util.install_hints import install_command

GOOD = """
    from sluiceway.metrics import MetricsReporter

    class Silent(MetricsReporter):
        def report(self, metrics):
            pass

    @hookimpl
    def sluiceway_metrics_reporters():
        return [Offer("NAME", lambda: Silent, "says nothing")]
"""


def good(name: str) -> str:
    return GOOD.replace("NAME", name)


# -- finding ------------------------------------------------------------------------------------------------


def test_a_plugin_is_found_by_its_entry_point_and_gives_what_it_offers(site: Any, manage: Any) -> None:
    site.install("sluiceway-silent", good("silent"), version="2.5", points="quiet = sluiceway_silent")
    manager = manage()
    (reporter,) = manager.services().metrics_reporters(["silent"])
    assert type(reporter).__name__ == "Silent"
    (plugin,) = [p for p in manager.plugins if p.name == "quiet"]
    assert str(plugin) == "plugin 'quiet' (sluiceway-silent 2.5)"
    assert manager.told == []


def test_each_call_makes_a_new_one_and_loads_once(manage: Any) -> None:
    loaded: list[str] = []

    class Silent(MetricsReporter):
        def report(self, metrics: Any) -> None:
            pass

    class Mine:
        @hookimpl
        def sluiceway_metrics_reporters(self) -> list[Offer]:
            return [Offer("silent", lambda: loaded.append("once") or Silent)]

    manager = manage()
    manager.register(Mine(), "mine")
    first, second = manager.services().metrics_reporters(["silent", "silent"])
    assert first is not second
    assert loaded == ["once"]


def test_finding_a_plugin_imports_its_module_but_nothing_that_its_offers_load(site: Any, manage: Any) -> None:
    site.install(
        "lazy",
        """
        def load():
            import lazy_private
            return lazy_private.make

        @hookimpl
        def sluiceway_transports():
            return [Offer("lazy", load)]
        """,
    )
    (site.folder / "lazy_private.py").write_text(
        "from sluiceway.network.local_channel import LocalTransport as make"
    )
    manager = manage()
    assert "lazy" not in sys.modules
    assert [str(o) for o in manager.all_offers() if o.plugin.name == "lazy"] == ["transport 'lazy'"]
    assert "lazy" in sys.modules
    assert "lazy_private" not in sys.modules
    manager.services().transport("lazy").close()
    assert "lazy_private" in sys.modules


def test_the_core_offers_its_own_through_the_same_hooks(manage: Any) -> None:
    manager = manage()
    offers = {(o.kind.word, o.offer.name) for o in manager.all_offers()}
    assert offers == {
        ("engine", "local"),
        ("transport", "local"),
        ("metrics reporter", "log"),
        ("metrics reporter", "jsonl"),
    }
    assert isinstance(manager.engine("local"), Engine)


def test_the_first_distribution_of_a_name_on_the_path_hides_the_later_ones(site: Any, manage: Any) -> None:
    site.install("twin", good("one"), version="2.0")
    other = type(site)(site.folder / "later")
    other.folder.mkdir()
    other.install("Twin", good("one"), version="1.0", points="twin = twin")
    told: list[Problem] = []
    manager = PluginManager({}, told.append, [*site.distributions(), *other.distributions()])
    assert [str(p) for p in manager.plugins if p.name == "twin"] == ["plugin 'twin' (twin 2.0)"]
    assert manager.find(METRICS_REPORTER, "one").rivals == ()
    assert told == []


def test_a_plugin_may_be_an_object_that_the_program_registers(manage: Any) -> None:
    class Mine:
        @hookimpl
        def sluiceway_cli_commands(self) -> list[Offer]:
            return [Offer("greet", lambda: "hello")]

    manager = manage()
    assert manager.offers(CLI_COMMAND) == []
    manager.register(Mine(), "mine")
    assert manager.factory(CLI_COMMAND, "greet") == "hello"
    assert str(manager.plugins[-1]) == "plugin 'mine' (registered by the program)"


def test_registering_a_name_again_replaces_the_plugin(manage: Any) -> None:
    class Mine:
        def __init__(self, word: str) -> None:
            self.word = word

        @hookimpl
        def sluiceway_cli_commands(self) -> list[Offer]:
            return [Offer("greet", lambda: self.word)]

    manager = manage()
    for word in ("hello", "good day"):
        manager.register(Mine(word), "mine")
        assert manager.factory(CLI_COMMAND, "greet") == word
    assert manager.told == []


def test_the_default_manager_is_one_for_all_threads() -> None:
    seen: list[PluginManager] = []
    threads = [threading.Thread(target=lambda: seen.append(default_manager())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(map(id, seen))) == 1
    assert {"memory", "socket", "files", "core"} <= {p.name for p in seen[0].plugins}


def test_many_threads_may_ask_at_once(site: Any, manage: Any) -> None:
    site.install("a", good("silent"))
    manager = manage()
    barrier = threading.Barrier(8)
    made: list[type] = []

    def ask() -> None:
        barrier.wait()
        made.append(type(manager.make(METRICS_REPORTER, "silent", MetricsReporter)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8
    assert len(set(made)) == 1


# -- bad plugins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("this is no Python", "SyntaxError: invalid syntax (bad.py, line 2)"),
        ("class Panic(BaseException): pass\nraise Panic('at lib.rs')", "Panic: at lib.rs"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        (
            "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute",
            "Mute (its text cannot be shown: its __str__ raised RuntimeError)",
        ),
    ],
)
def test_one_that_breaks_on_import_is_left_out_and_the_others_work(
    site: Any, manage: Any, code: str, says: str
) -> None:
    site.install("bad", code)
    site.install("good", good("silent"))
    manager = manage()
    assert len(manager.services().metrics_reporters(["silent"])) == 1
    assert manager.messages == [
        f"plugin 'bad' (bad 1.0) is left out: {says}. Repair or uninstall it, or set "
        "SLUICEWAY_DISABLE_PLUGINS=bad; SLUICEWAY_TRACE_PLUGINS=1 shows where it happens"
    ]
    assert {p.name: p.state for p in manager.plugins} == {"bad": "broken", "good": "loaded", "core": "loaded"}


def test_ctrl_c_while_plugins_are_imported_is_not_theirs(site: Any, manage: Any) -> None:
    site.install("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        manage().load()


def test_plugins_are_found_again_after_ctrl_c(site: Any, manage: Any, tmp_path: Path) -> None:
    place = tmp_path / "interrupted"
    once = f"""
    from pathlib import Path

    if not Path({str(place)!r}).exists():
        Path({str(place)!r}).touch()
        raise KeyboardInterrupt
    """
    site.install("early", good("early"))
    site.install("late", once + good("late"))
    manager = manage()
    with pytest.raises(KeyboardInterrupt):
        manager.offers(METRICS_REPORTER)
    assert {offered.offer.name for offered in manager.offers(METRICS_REPORTER)} >= {"early", "late"}
    assert {p.name: p.state for p in manager.plugins} == {"core": "loaded", "early": "loaded", "late": "loaded"}
    assert manager.told == []


def test_an_entry_point_that_leads_nowhere_is_left_out(site: Any, manage: Any) -> None:
    site.install("good", good("silent"), points="good = good\nlost = good:missing")
    manager = manage()
    assert {p.name: p.state for p in manager.plugins}["lost"] == "broken"
    assert "has no attribute 'missing'" in manager.messages[0]


def test_an_entry_point_that_names_no_module_is_left_out(site: Any, manage: Any) -> None:
    site.install("good", good("silent"), points="good = good\nlost = good/plugin.py")
    manager = manage()
    assert {p.name: p.state for p in manager.plugins}["lost"] == "broken"
    assert "its entry point is 'good/plugin.py', which is no 'module' and no" in manager.messages[0]


def test_a_name_that_a_distribution_declares_twice_is_that_of_the_first(site: Any, manage: Any) -> None:
    site.install("good", good("silent"), points="good = good\ngood = good:missing")
    manager = manage()
    assert {p.name: p.state for p in manager.plugins} == {"core": "loaded", "good": "loaded"}
    assert manager.messages == [
        "good 1.0 declares the plugin 'good' twice: 'good:missing' is left out, 'good' is taken"
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('not today')", "its hook sluiceway_metrics_reporters failed: ValueError: not today"),
        ("raise SystemExit", "its hook sluiceway_metrics_reporters failed: SystemExit"),
        ("raise GeneratorExit", "its hook sluiceway_metrics_reporters failed: GeneratorExit"),
        ("return 7", "its hook sluiceway_metrics_reporters returned 7, which is no list of"),
        ("return type('R', (), {'__repr__': lambda self: 1 / 0})()", "returned <R instance at 0x"),
        ("return list(range(100_000))", "returned [0, 1, 2, 3, 4, 5, ...], which is no list of"),
        ("return ['silent']", "its hook sluiceway_metrics_reporters returned ['silent'], which is no list of"),
        ("return [Offer('', print)]", "which is no list of sluiceway.hooks.Offer with a name and a load function"),
        ("return [Offer('x', 7)]", "which is no list of sluiceway.hooks.Offer with a name and a load function"),
    ],
)
def test_a_hook_that_breaks_costs_its_own_offers_only(site: Any, manage: Any, body: str, says: str) -> None:
    site.install("bad", f"@hookimpl\ndef sluiceway_metrics_reporters():\n    {body}")
    site.install("good", good("silent"))
    manager = manage()
    names = [o.offer.name for o in manager.offers(METRICS_REPORTER)]
    assert names == ["jsonl", "log", "silent"]
    (message,) = manager.messages
    assert message.startswith("plugin 'bad' (bad 1.0): ")
    assert says in message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("requires='json'", "its requires is 'json', which is no tuple of the names of modules"),
        ("requires=None", "its requires is None, which is no tuple of the names of modules"),
        ("libraries=(7,)", "its libraries is (7,), which is no tuple of the names of modules"),
        ("summary=None", "its summary is None, which is no text"),
        ("extra=['fast']", "its extra is ['fast'], which is no text"),
    ],
)
def test_an_offer_with_a_field_of_a_wrong_type_is_left_out_and_the_others_work(
    site: Any, manage: Any, fields: str, says: str
) -> None:
    site.install("bad", good("x").replace('"says nothing")', f'{fields}), Offer("fine", lambda: Silent)'))
    manager = manage()
    assert [o.offer.name for o in manager.offers(METRICS_REPORTER)] == ["fine", "jsonl", "log"]
    assert [o.missing for o in manager.all_offers()] == [[]] * 5
    assert manager.messages == [
        f"metrics reporter 'x' of plugin 'bad' (bad 1.0) is left out: {says}. Repair or uninstall it, or set "
        "SLUICEWAY_DISABLE_PLUGINS=bad; SLUICEWAY_TRACE_PLUGINS=1 shows where it happens"
    ]


def test_a_hook_that_does_not_exist_is_told_with_the_one_that_was_meant(site: Any, manage: Any) -> None:
    site.install(
        "slip",
        """
        @hookimpl
        def sluiceway_transport():
            return []

        @hookimpl(optionalhook=True)
        def sluiceway_of_a_later_version():
            return []
        """,
    )
    manager = manage()
    manager.load()
    assert manager.messages == [
        "plugin 'slip' (slip 1.0) implements 'sluiceway_transport', which is no hook of ours. "
        "Did you mean 'sluiceway_transports'?"
    ]


def test_a_hook_with_an_argument_that_it_is_not_given_leaves_the_plugin_out(site: Any, manage: Any) -> None:
    greedy = "\n@hookimpl\ndef sluiceway_transports(everything):\n    return []\n"
    site.install("greedy", dedent(good("half")) + greedy)
    site.install("good", good("silent"))
    manager = manage()
    # All of it: half a plugin would be harder to understand than none.
    assert [o.offer.name for o in manager.offers(METRICS_REPORTER)] == ["jsonl", "log", "silent"]
    assert "Argument(s) {'everything'} are declared in the hookimpl" in manager.messages[0]
    assert [o.offer.name for o in manager.offers(TRANSPORT)] == ["local"]


def test_a_wrapper_is_told_of_and_not_called(site: Any, manage: Any) -> None:
    site.install("wrap", "@hookimpl(wrapper=True)\ndef sluiceway_transports():\n    yield\n    return [1]")
    manager = manage()
    assert [o.offer.name for o in manager.offers(TRANSPORT)] == ["local"]
    assert manager.messages == [
        "plugin 'wrap' (wrap 1.0) implements 'sluiceway_transports' as a wrapper, which is never called"
    ]


def test_metadata_that_cannot_be_read_hides_no_other_plugin(site: Any, manage: Any) -> None:
    site.install("good", good("silent"))
    site.install("garbled", points="")
    (site.folder / "garbled-1.0.dist-info" / "entry_points.txt").write_bytes(b"[sluiceway]\ngarbled = \xff\n")
    nameless = site.folder / "nameless-1.0.dist-info"
    nameless.mkdir()
    (nameless / "METADATA").write_text("Metadata-Version: 2.1\nVersion: 1.0\n")
    (nameless / "entry_points.txt").write_text("[sluiceway]\nx = good\n")
    manager = manage()
    assert len(manager.services().metrics_reporters(["silent"])) == 1
    assert len(manager.messages) == 2
    assert all("its plugins cannot be listed" in m for m in manager.messages)
    assert any("garbled-1.0.dist-info" in m and "UnicodeDecodeError" in m for m in manager.messages)


def test_problems_are_told_once(site: Any, manage: Any) -> None:
    site.install("bad", "raise RuntimeError('boom')")
    manager = manage()
    manager.load()
    manager.load()
    manager.services()
    assert len(manager.told) == 1
    assert manager.problems == manager.told
    assert isinstance(manager.problems[0].cause, RuntimeError)


def test_without_anybody_to_tell_problems_are_logged(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    site.install("bad", "raise RuntimeError('boom')")
    PluginManager({}, None, site.distributions()).load()
    (record,) = caplog.records
    assert record.name == "sluiceway.plugins"
    assert record.levelname == "WARNING"
    assert "plugin 'bad' (bad 1.0) is left out: RuntimeError: boom" in record.message


# -- names --------------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_the_known_ones(manage: Any) -> None:
    with pytest.raises(UnknownNameError) as caught:
        manage().services().metrics_reporters(["lgo"])
    assert str(caught.value) == "there is no metrics reporter 'lgo'. Did you mean 'log'? Known: 'jsonl', 'log'"


def test_an_unknown_name_mentions_the_plugins_that_might_have_had_it(site: Any, manage: Any) -> None:
    site.install("bad", "raise RuntimeError('boom')")
    site.install("off", good("silent"))
    with pytest.raises(UnknownNameError) as caught:
        manage(SLUICEWAY_DISABLE_PLUGINS="off").services().metrics_reporters(["silent"])
    assert str(caught.value).endswith(
        "Known: 'jsonl', 'log'. Plugins that were left out: 'bad' (broken), 'off' (disabled)"
    )


def test_a_name_offered_twice_is_an_error_when_it_is_used_and_names_both(site: Any, manage: Any) -> None:
    site.install("one", good("silent"))
    site.install("two", good("silent"), version="3.1")
    manager = manage()
    offers = [o for o in manager.offers(METRICS_REPORTER) if o.offer.name == "silent"]
    assert [[r.name for r in o.rivals] for o in offers] == [["two"], ["one"]]
    assert len(manager.services().metrics_reporters(["log"])) == 1
    with pytest.raises(PluginError) as caught:
        manager.services().metrics_reporters(["silent"])
    assert str(caught.value) == (
        "metrics reporter 'silent' is offered more than once: by plugin 'one' (one 1.0) and by plugin 'two' "
        "(two 3.1). Uninstall one, or set SLUICEWAY_DISABLE_PLUGINS=two"
    )


def test_a_distribution_without_a_version_is_named_without_one(site: Any, manage: Any) -> None:
    site.install("plain", good("silent"))
    (site.folder / "plain-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plain\n")
    (plugin,) = [p for p in manage().plugins if p.name == "plain"]
    assert str(plugin) == "plugin 'plain' (plain)"


def test_two_plugins_of_one_name_are_not_said_to_be_disabled_one_by_one(site: Any, manage: Any) -> None:
    site.install("one", good("silent"), points="same = one")
    site.install("two", good("silent"), points="same = two")
    with pytest.raises(PluginError) as caught:
        manage().services().metrics_reporters(["silent"])
    assert str(caught.value) == (
        "metrics reporter 'silent' is offered more than once: by plugin 'same' (one 1.0) and by plugin 'same' "
        "(two 1.0). Uninstall one"
    )


def test_disabling_one_of_two_settles_it(site: Any, manage: Any) -> None:
    site.install("one", good("silent"))
    site.install("two", good("silent"))
    assert len(manage(SLUICEWAY_DISABLE_PLUGINS="two").services().metrics_reporters(["silent"])) == 1


def test_one_name_for_two_kinds_is_no_matter(site: Any, manage: Any) -> None:
    site.install("one", good("local"))
    manager = manage()
    assert manager.find(METRICS_REPORTER, "local").rivals == ()


# -- what an offer needs ------------------------------------------------------------------------------------

NEEDY = """
    @hookimpl
    def sluiceway_state_backends():
        def load():
            import BODY
        return [Offer("deep", load, requires=REQUIRES, extra="EXTRA")]
"""


def needy(*, requires: tuple[str, ...], extra: str = "deep", body: str = "nothing_here") -> str:
    return NEEDY.replace("REQUIRES", repr(requires)).replace("EXTRA", extra).replace("BODY", body)


def test_a_missing_library_says_what_to_install(site: Any, manage: Any) -> None:
    # Nobody but the project's own distribution has extras of `sluiceway`.
    site.install("sluiceway", needy(requires=("deepdict",)), points="deep = sluiceway_deep")
    (site.folder / "sluiceway.py").rename(site.folder / "sluiceway_deep.py")
    manager = manage()
    with pytest.raises(MissingExtraError) as caught:
        manager.services().state_backend("deep")
    command = install_command("sluiceway[deep]")
    assert str(caught.value) == f"state backend 'deep' needs deepdict: {command}"
    (offered,) = manager.offers(STATE_BACKEND)
    assert offered.missing == ["deepdict"]
    assert offered.install == command


def test_another_distribution_names_its_own_requirement(site: Any, manage: Any) -> None:
    site.install("third", needy(requires=("deepdict", "json", "far.away"), extra="third[deep]>=1"))
    with pytest.raises(MissingExtraError) as caught:
        manage().services().state_backend("deep")
    assert str(caught.value) == (
        "state backend 'deep' needs deepdict and far.away: pip install \"third[deep]>=1\""
    )


def test_without_an_extra_the_modules_are_named(site: Any, manage: Any) -> None:
    site.install("third", needy(requires=("deepdict.fast",), extra=""))
    with pytest.raises(MissingExtraError, match=r"needs deepdict\.fast: pip install deepdict$"):
        manage().services().state_backend("deep")


def test_a_library_that_is_there_and_cannot_be_imported_counts_as_missing(site: Any, manage: Any) -> None:
    (site.folder / "halfdict.py").write_text("import halfdict.core")
    site.install("third", needy(requires=("halfdict",), body="halfdict"))
    with pytest.raises(MissingExtraError, match=r"needs halfdict\.core"):
        manage().services().state_backend("deep")


def test_a_library_in_a_package_that_is_broken_is_told_of_where_it_is_loaded(site: Any, manage: Any) -> None:
    (site.folder / "crashing").mkdir()
    (site.folder / "crashing" / "__init__.py").write_text("raise RuntimeError('built for another Python')")
    site.install("third", needy(requires=("crashing.part",), body="crashing.part"))
    manager = manage()
    assert [o.missing for o in manager.offers(STATE_BACKEND)] == [[]]
    with pytest.raises(PluginError, match="cannot be loaded: RuntimeError: built for another Python"):
        manager.services().state_backend("deep")


def test_what_else_goes_wrong_in_loading_is_told_with_its_cause(site: Any, manage: Any) -> None:
    site.install("third", needy(requires=(), body="nothing_here"))
    with pytest.raises(PluginError) as caught:
        manage().services().state_backend("deep")
    assert not isinstance(caught.value, MissingExtraError)
    assert str(caught.value) == (
        "state backend 'deep' of plugin 'third' (third 1.0) cannot be loaded: "
        "ModuleNotFoundError: No module named 'nothing_here'"
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            "lambda: 7",
            "state backend 'odd' of plugin 'odd' (odd 1.0) is a int, not a sluiceway.state.StateBackend",
        ),
        (
            "7",
            "state backend 'odd' of plugin 'odd' (odd 1.0): load() returned 7, which cannot be called to make one",
        ),
    ],
)
def test_what_is_not_of_its_kind_is_refused(site: Any, manage: Any, made: str, says: str) -> None:
    site.install("odd", f"@hookimpl\ndef sluiceway_state_backends():\n    return [Offer('odd', lambda: {made})]")
    with pytest.raises(PluginError) as caught:
        manage().services().state_backend("odd")
    assert str(caught.value) == says


def raising(error: str) -> str:
    """Source of a plugin whose state backend ``odd`` raises when it is made."""
    return f"""
        def make():
            from sluiceway.errors import ConfigurationError
            raise {error}
        @hookimpl
        def sluiceway_state_backends():
            return [Offer("odd", lambda: make)]
    """


@pytest.mark.parametrize("error", ["ValueError('no')", "SystemExit('no')", "GeneratorExit('no')"])
def test_what_is_raised_in_making_one_names_the_plugin(site: Any, manage: Any, error: str) -> None:
    site.install("odd", raising(error))
    with pytest.raises(PluginError) as caught:
        manage().services().state_backend("odd")
    name = error.partition("(")[0]
    assert str(caught.value) == f"state backend 'odd' of plugin 'odd' (odd 1.0) cannot be made: {name}: no"
    assert type(caught.value.__cause__).__name__ == name


@pytest.mark.parametrize("error", ["ConfigurationError('no')", "OSError('no')"])
def test_errors_that_explain_themselves_or_pass_go_through(site: Any, manage: Any, error: str) -> None:
    site.install("odd", raising(error))
    with pytest.raises((ConfigurationError, OSError), match="no"):
        manage().services().state_backend("odd")


@pytest.mark.parametrize(
    ("hook", "ask"),
    [
        ("sluiceway_transports", lambda m: m.services().transport("odd")),
        ("sluiceway_partitioners", lambda m: m.services().partitioner("odd")),
        ("sluiceway_metrics_reporters", lambda m: m.services().metrics_reporters(["odd"])),
        ("sluiceway_engines", lambda m: m.engine("odd")),
        ("sluiceway_checkpoint_storages", lambda m: m.checkpoint_storage("odd://x")),
        ("sluiceway_connectors", lambda m: m.connector("odd")),
        ("sluiceway_serializers", lambda m: m.serializer("odd")),
    ],
)
def test_every_kind_is_held_to_its_contract(site: Any, manage: Any, hook: str, ask: Any) -> None:
    site.install("odd", f"@hookimpl\ndef {hook}():\n    return [Offer('odd', lambda: lambda *of: 7)]")
    with pytest.raises(PluginError, match=r"'odd' of plugin 'odd' \(odd 1.0\) is a \w+, not a sluiceway\."):
        ask(manage())


def test_every_kind_has_a_hook_and_every_offering_hook_a_kind() -> None:
    from sluiceway.plugins import hookspecs

    offering = {
        name for name in hookspecs.__all__ if getattr(hookspecs, name).__annotations__["return"] == "list[Offer]"
    }
    assert {kind.hook for kind in KINDS} == offering


# -- disabling and tracing ----------------------------------------------------------------------------------


def test_a_disabled_plugin_is_not_even_imported(site: Any, manage: Any) -> None:
    site.install("bad", "raise RuntimeError('boom')")
    site.install("good", good("silent"))
    manager = manage(SLUICEWAY_DISABLE_PLUGINS=" bad ,")
    manager.load()
    assert manager.told == []
    assert "bad" not in sys.modules
    assert {p.name: p.state for p in manager.plugins}["bad"] == "disabled"


def test_disabling_what_is_not_there_is_told(manage: Any) -> None:
    manager = manage(SLUICEWAY_DISABLE_PLUGINS="coer")
    manager.load()
    assert manager.messages == [
        "SLUICEWAY_DISABLE_PLUGINS: there is no plugin 'coer'. Did you mean 'core'? Known: 'core'"
    ]


def test_tracing_tells_of_imports_calls_and_failures(
    site: Any, manage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    site.install("good", good("silent"))
    site.install("bad", "@hookimpl\ndef sluiceway_metrics_reporters():\n    raise ValueError('not today')")
    manage(SLUICEWAY_TRACE_PLUGINS="1").services().metrics_reporters(["silent"])
    told = capsys.readouterr().err
    assert "sluiceway plugins: import 'good' (good) [" in told
    assert "sluiceway plugins: sluiceway_metrics_reporters() of 'good' -> silent [" in told
    assert "sluiceway plugins: load metrics reporter 'silent' of 'good' [" in told
    assert "sluiceway plugins: sluiceway_metrics_reporters of 'bad' raised ValueError: not today [" in told
    assert "raise ValueError('not today')\nValueError: not today" in told


def test_no_tracing_no_words(site: Any, manage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("good", good("silent"))
    manage(SLUICEWAY_TRACE_PLUGINS="0").services().metrics_reporters(["silent"])
    assert capsys.readouterr() == ("", "")
