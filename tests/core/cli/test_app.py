"""The command as a whole: help, wrong commands, plugins' commands, the commands that need no pipeline."""

from __future__ import annotations

import json
import platform
import re
import signal
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from patience import PATIENT_S

from sluiceway import cli, exit_codes
from sluiceway.errors import MissingExtraError
from sluiceway.hooks import Offer, hookimpl
from sluiceway.partitioner import Partitioner
from sluiceway.plugins import PluginManager

HAS_SPARK = find_spec("pyspark") is not None


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    """A plugin manager of the test's own in the place of the process's."""
    made = PluginManager()
    monkeypatch.setattr("sluiceway.plugins.manager._default", made)
    return made


def test_ctrl_c_during_the_imports_counts_after_them_and_shows_no_stack(monkeypatch: Any, capsys: Any) -> None:
    """The import of msgspec is not interrupted: the interpreter has crashed there."""

    class Interrupts:
        def find_spec(self, name: str, path: Any, target: Any = None) -> None:
            if name == "sluiceway.cli.app":
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.delitem(sys.modules, "sluiceway.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main(["version"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == exit_codes.CANCELLED
    assert capsys.readouterr().err == "cancelled\n"
    assert "sluiceway.cli.app" in sys.modules
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


# -- help and mistakes --------------------------------------------------------------------------------------


def test_help_lists_commands_and_exit_codes(sluiceway: Any) -> None:
    told = sluiceway("--help").stdout
    for command in ("run", "explain", "check", "plugins", "config", "new", "version"):
        assert f"\n  {command} " in told
    for code in exit_codes.EXPLAINED:
        assert f"\n  {code} " in told


@pytest.mark.parametrize(
    "command", ["run", "explain", "check", "plugins list", "config show", "new plugin", "version"]
)
def test_every_command_explains_itself(sluiceway: Any, command: str) -> None:
    result = sluiceway(*command.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: sluiceway {command}")
    assert len(result.stdout.splitlines()) > 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rnu"], "there is no command 'rnu'. Did you mean 'run'?"),
        (["wc.py"], "there is no command 'wc.py'. To run a pipeline: sluiceway run wc.py"),
        (["qqq"], "there is no command 'qqq'.\n"),
        (["--versoin"], "--versoin"),
        (
            ["new", "totals"],
            "'totals'. For a project of that name: sluiceway new pipeline totals or sluiceway new",
        ),
        (["new", "pipelin"], "Did you mean 'pipeline'?"),
        (["plugins", "lits"], "there is no command 'lits'. Did you mean 'list'?"),
        (["version", "--jsno"], "--jsno"),
        (["run"], "Missing argument 'TARGET'."),
        (["explain", "x.py", "--format", "png"], "'png' is not one of 'text', 'mermaid', 'json', 'html'."),
    ],
)
def test_a_wrong_command_or_option_is_2(sluiceway: Any, words: list[str], says: str) -> None:
    result = sluiceway(*words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_version(sluiceway: Any) -> None:
    assert sluiceway("version").stdout.startswith(
        f"sluiceway {version('sluiceway')} (Python {platform.python_version()}, "
    )
    facts = json.loads(sluiceway("version", "--json").stdout)
    assert facts["sluiceway"] == version("sluiceway")
    assert facts["python"] == platform.python_version()


# -- commands of plugins ------------------------------------------------------------------------------------


class Greeter:
    """Offers commands; counts how often it is asked."""

    asked = 0

    @hookimpl
    def sluiceway_cli_commands(self) -> list[Offer]:
        self.asked += 1

        @click.command()
        @click.argument("name")
        def greet(name: str) -> int:
            """Greet NAME."""
            click.echo(f"hello {name}")
            return 5

        @click.command()
        def fail() -> None:
            """Fail."""
            raise MissingExtraError("needs more")

        return [
            Offer("greet", lambda: greet),
            Offer("fail", lambda: fail),
            Offer("odd", lambda: 7),
            Offer("needy", lambda: greet, requires=("no_such_library",), extra="greeter[all]"),
            Offer("run", lambda: greet),
        ]


def test_a_plugin_may_bring_commands(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Greeter(), "greeter")
    result = sluiceway("greet", "you")
    assert (result.exit_code, result.stdout) == (0, "hello you\n")
    told = sluiceway("--help").stdout
    assert re.search(r"\n  greet +Greet NAME\.\n", told)
    assert "greeter[all]" in told.replace("\n", "")
    assert told.count("\n  run ") == 1


def test_what_a_plugins_command_raises_is_told_like_our_own(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Greeter(), "greeter")
    for command, says in (
        ("fail", "error: needs more\n"),
        ("needy", "error: command 'needy' needs no_such_library: pip install \"greeter[all]\"\n"),
        (
            "odd",
            "error: command 'odd' of plugin 'greeter' (registered by the program) is a int, not a click.Command\n",
        ),
    ):
        result = sluiceway(command)
        assert (result.exit_code, result.stderr) == (3, says)


def test_a_command_whose_help_is_no_text_hides_no_other(sluiceway: Any, manager: PluginManager) -> None:
    class Helpless:
        @hookimpl
        def sluiceway_cli_commands(self) -> list[Offer]:
            return [Offer("helpless", lambda: click.Command("helpless", help=7))]  # type: ignore[arg-type]

    manager.register(Helpless(), "helpless")
    result = sluiceway("--help")
    assert result.exit_code == 0
    assert re.search(r"\n  helpless +\(its help cannot be shown: AttributeError\)\n", result.stdout)
    assert "\n  run " in result.stdout


def test_a_mistyped_command_of_a_plugin_is_found_too(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Greeter(), "greeter")
    assert "Did you mean 'greet'?" in sluiceway("gret").stderr


def test_no_plugin_is_asked_for_our_own_commands_nor_can_take_their_names(
    sluiceway: Any, manager: PluginManager
) -> None:
    greeter = Greeter()
    manager.register(greeter, "greeter")
    assert sluiceway("version").exit_code == 0
    assert "Run the pipeline in TARGET" in sluiceway("run", "--help").stdout
    assert greeter.asked == 0


# -- plugins ------------------------------------------------------------------------------------------------


class Needy:
    @hookimpl
    def sluiceway_state_backends(self) -> list[Offer]:
        return [
            Offer("deep", lambda: None, "a deep one", ("no_such_library",), "deep-plugin[all]"),
            Offer("memory", lambda: None, "another one"),
        ]


class Silent:
    pass


def test_plugins_are_listed_with_their_state(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Needy(), "needy")
    manager.register(Silent(), "silent")
    result = sluiceway("plugins", "list")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    ours = version("sluiceway")
    assert ["engine", "local", ours, "core", "(sluiceway)", "available"] in rows
    assert ["connector", "socket", ours, "socket", "(sluiceway)", "available"] in rows
    assert ["state", "backend", "memory", ours, "memory", "(sluiceway)", "offered", "more", "than", "once"] in rows
    assert any(
        'needs no_such_library: pip install "deep-plugin[all]"' in line for line in result.stdout.splitlines()
    )
    assert any(row[:1] == ["silent"] and row[-2:] == ["offers", "nothing"] for row in rows)


def test_plugins_as_json(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Needy(), "needy")
    facts = json.loads(sluiceway("plugins", "list", "--json").stdout)
    assert {p["name"] for p in facts["plugins"]} >= {"core", "memory", "socket", "files", "needy"}
    (deep,) = [o for o in facts["offers"] if o["name"] == "deep"]
    assert deep == {
        "kind": "state backend",
        "name": "deep",
        "summary": "a deep one",
        "plugin": "needy",
        "distribution": "",
        "version": "",
        "module": "Needy",
        "available": False,
        "requires": ["no_such_library"],
        "missing": ["no_such_library"],
        "broken": "",
        "install": 'pip install "deep-plugin[all]"',
        "rivals": [],
    }
    assert facts["problems"] == []


def test_what_is_there_but_broken_is_listed_with_reason_and_command(
    sluiceway: Any, manager: PluginManager, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "broken_library.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(place)

    class Broken:
        @hookimpl
        def sluiceway_state_backends(self) -> list[Offer]:
            return [
                Offer("native", lambda: None, "a native one", ("broken_library",), "native-plugin[all]"),
                Offer("young", lambda: 1 // 0, "an unfinished one"),
                Offer("lazy", lambda: None, "one that loads", (), "lazy-plugin[all]", ("no_such_library",)),
            ]

    manager.register(Broken(), "broken")
    told = sluiceway("plugins", "list")
    assert told.exit_code == 0, told.output
    native = (
        "broken: broken_library cannot be imported (ImportError: libfoo.so.1: cannot open shared object file): "
        "pip install --force-reinstall broken_library"
    )
    (line,) = [line for line in told.stdout.splitlines() if " native " in line]
    assert line.endswith(native)
    (line,) = [line for line in told.stdout.splitlines() if " young " in line]
    assert "broken: state backend 'young' of plugin 'broken'" in line
    assert "ZeroDivisionError" in line
    assert f"state:      {native}\n" in sluiceway("plugins", "show", "native").stdout
    facts = {o["name"]: o for o in json.loads(sluiceway("plugins", "list", "--json").stdout)["offers"]}
    assert not any(facts[name]["available"] for name in ("native", "young", "lazy"))
    (line,) = [line for line in told.stdout.splitlines() if " lazy " in line]
    assert line.endswith('needs no_such_library: pip install "lazy-plugin[all]"')
    assert facts["socket"]["available"] is True


class Mistaken:
    """Offers of other types than their kinds have."""

    @hookimpl
    def sluiceway_cli_commands(self) -> list[Offer]:
        return [Offer("greet", lambda: print), Offer("run", lambda: click.Command("run"))]

    @hookimpl
    def sluiceway_connectors(self) -> list[Offer]:
        return [Offer("tide", lambda: Silent)]

    @hookimpl
    def sluiceway_partitioners(self) -> list[Offer]:
        return [Offer("even", lambda: Silent()), Offer("odd", lambda: Silent), Offer("half", lambda: Unfinished)]


class Unfinished(Partitioner):
    """Lacks its method."""


def test_offers_of_another_type_than_their_kind_are_not_available(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Mistaken(), "mistaken")
    offers = json.loads(sluiceway("plugins", "list", "--json").stdout)["offers"]
    found = {o["name"]: o for o in offers if o["plugin"] == "mistaken"}
    assert not any(o["available"] for o in found.values())
    for name, says in (
        ("greet", "is a builtin_function_or_method, not a click.Command"),
        ("run", "'sluiceway run' is a command of Sluiceway's own, which comes first"),
        ("tide", "is a type, not a sluiceway.connector.Connector"),
        ("even", "which cannot be called to make one"),
        ("odd", "is a Silent, not a sluiceway.partitioner.Partitioner"),
        ("half", "Unfinished lacks partition"),
    ):
        assert says in found[name]["broken"]


def test_what_a_plugin_prints_while_it_loads_is_no_part_of_the_json(
    sluiceway: Any, manager: PluginManager
) -> None:
    class Talkative:
        @hookimpl
        def sluiceway_cli_commands(self) -> list[Offer]:
            print("offering")
            return [Offer("greet", load)]

    def load() -> click.Command:
        print("loading")
        return click.Command("greet")

    manager.register(Talkative(), "talkative")
    for command in (["list"], ["show", "greet"]):
        told = sluiceway("plugins", *command, "--json")
        assert "greet" in {o["name"] for o in json.loads(told.stdout)["offers"]}
    assert told.stderr == ""
    manager.register(Talkative(), "talkative")
    assert sluiceway("plugins", "list", "--json").stderr == "offering\nloading\n"


def test_one_offer_is_shown_and_tried(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Needy(), "needy")
    told = sluiceway("plugins", "show", "deep").stdout
    assert told == (
        "state backend 'deep'\n"
        "  what it is: a deep one\n"
        "  plugin:     needy (Needy)\n"
        "  comes from: registered by the program\n"
        "  needs:      no_such_library\n"
        "  state:      not available: state backend 'deep' needs no_such_library: "
        'pip install "deep-plugin[all]"\n'
    )
    told = sluiceway("plugins", "show", "memory").stdout
    assert told.count("state backend 'memory'\n") == 2
    assert told.count("not available: state backend 'memory' is offered more than once: by plugin 'memory' (") == 2
    (offer,) = json.loads(sluiceway("plugins", "show", "socket", "--json").stdout)["offers"]
    assert offer["error"] is None


def test_every_offer_of_this_distribution_loads(sluiceway: Any) -> None:
    for offer in json.loads(sluiceway("plugins", "list", "--json").stdout)["offers"]:
        if offer["distribution"] == "sluiceway" and not offer["missing"]:
            shown = json.loads(sluiceway("plugins", "show", offer["name"], "--json").stdout)["offers"]
            assert [o["error"] for o in shown] == [None] * len(shown), offer


def test_a_plugin_that_offers_nothing_can_be_shown(sluiceway: Any, manager: PluginManager) -> None:
    manager.register(Silent(), "silent")
    assert "state:      offers nothing\n" in sluiceway("plugins", "show", "silent").stdout
    result = sluiceway("plugins", "show", "silnet")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: there is no plugin or offer 'silnet'. Did you mean 'silent'? Known: ")


def test_problems_are_warnings_and_change_nothing_else(start: Any, write: Any) -> None:
    write("site/bad_plugin.py", "raise RuntimeError('boom')", head="")
    write(
        "site/bad_plugin-1.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: bad-plugin\nVersion: 1.0\n",
        head="",
    )
    write("site/bad_plugin-1.0.dist-info/entry_points.txt", "[sluiceway]\nbad = bad_plugin\n", head="")
    write("job.py", "flow = sw.Pipeline()\nflow.from_collection([1]).print()")
    warning = "warning: plugin 'bad' (bad-plugin 1.0) is left out: RuntimeError: boom. "

    process = start("run", "-q", "job.py", PYTHONPATH="site")
    out, err = process.communicate(timeout=PATIENT_S)
    assert (process.returncode, out) == (0, "1\n")
    assert err.startswith(warning)
    assert len(err.splitlines()) == 1

    process = start("run", "-q", "job.py", PYTHONPATH="site", SLUICEWAY_DISABLE_PLUGINS="bad")
    assert process.communicate(timeout=PATIENT_S) == ("1\n", "")


# -- config -------------------------------------------------------------------------------------------------


def test_config_show_says_where_each_value_comes_from(
    sluiceway: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "pyproject.toml").write_text("[tool.sluiceway]\nbuffer-timeout = '1s'\n")
    monkeypatch.setenv("SLUICEWAY_METRICS", "log,jsonl")
    told = sluiceway("config", "show", "-p", "3", "--no-chaining", "--no-object-reuse").stdout
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in told.splitlines() if line}
    assert rows["parallelism"] == "3 --parallelism"
    assert rows["chaining"] == "false --no-chaining"
    assert rows["object-reuse"] == "false --no-object-reuse"
    assert rows["metrics"] == "log, jsonl SLUICEWAY_METRICS"
    assert rows["buffer-timeout"] == f"1000 ms buffer-timeout in {place}/pyproject.toml"
    assert rows["max-parallelism"] == "from the parallelism default"
    assert told.endswith(f"\nConfiguration file: {place}/pyproject.toml\n")


def test_config_show_as_json(sluiceway: Any) -> None:
    facts = json.loads(sluiceway("config", "show", "--json", "--seed", "5").stdout)
    assert facts["file"] is None
    assert facts["options"]["seed"] == {"value": 5, "from": "--seed"}
    assert facts["options"]["metrics"] == {"value": [], "from": "default"}


def test_a_bad_value_is_2(sluiceway: Any) -> None:
    result = sluiceway("config", "show", "--seed", "x")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: --seed='x' is not a whole number from -9223372036854775808 to 9223372036854775807\n",
    )


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ("engine", "engine"),
        ("state-backend", "state backend"),
        ("transport", "transport"),
        ("metrics", "metrics reporter"),
        ("restart", "restart strategy"),
        ("scheduler", "scheduling strategy"),
    ],
)
def test_config_show_refuses_unknown_names(sluiceway: Any, place: Path, option: str, kind: str) -> None:
    (place / "sluiceway.toml").write_text(f"{option} = 'nope'\n")
    result = sluiceway("config", "show")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {option} in {place}/sluiceway.toml: there is no {kind} 'nope'.")


# -- explain and check --------------------------------------------------------------------------------------

FLOW = "flow = sw.Pipeline('plan')\nflow.from_collection([1]).map(str).uid('m').print()\n"


def test_explain_in_every_format(sluiceway: Any, write: Any) -> None:
    write("job.py", FLOW)
    assert "map(str)" in sluiceway("explain", "job.py").stdout
    assert sluiceway("explain", "job.py", "--format", "mermaid").stdout.startswith("flowchart")
    assert sluiceway("explain", "job.py", "--format", "html").stdout.lstrip().startswith("<")
    as_json = sluiceway("explain", "job.py", "--json")
    assert json.loads(as_json.stdout)
    assert as_json.stdout == sluiceway("explain", "job.py", "--format", "json").stdout
    assert as_json.stderr == ""


def test_explain_shows_what_the_options_change(sluiceway: Any, write: Any) -> None:
    write("job.py", FLOW)
    chained, apart = (sluiceway("explain", "job.py", *o).stdout for o in ([], ["--no-chaining"]))
    assert "in 1 task" in chained
    assert "in 3 tasks" in apart


def test_explain_takes_an_unfinished_pipeline_and_run_does_not(sluiceway: Any, write: Any) -> None:
    write("job.py", "flow = sw.Pipeline()\nflow.from_collection([1]).map(str)")
    assert sluiceway("explain", "job.py").exit_code == 0
    assert sluiceway("run", "job.py").exit_code == 2


def test_check_without_findings_is_0(sluiceway: Any, write: Any) -> None:
    write("job.py", FLOW.replace("from_collection([1])", "from_collection([1]).uid('s')"))
    result = sluiceway("check", "job.py")
    assert (result.exit_code, result.stdout) == (0, "pipeline 'plan': nothing wrong\n")
    assert json.loads(sluiceway("check", "job.py", "--json").stdout) == []


def test_check_names_what_the_engine_does_not_have(sluiceway: Any, write: Any) -> None:
    write("job.py", FLOW.replace("from_collection([1])", "from_collection([1]).uid('s')"))
    result = sluiceway("check", "job.py", "--engine", "spark", "--hosted", "--transport", "shm")
    assert result.exit_code == 2
    assert "error: transport is shm: engine 'spark' with --hosted does not have" in result.stdout
    result = sluiceway("check", "job.py", "--engine", "spark", "--hosted")
    *told, verdict = result.stdout.splitlines()
    assert verdict.startswith("pipeline 'plan' on engine 'spark' with --hosted: ")
    if HAS_SPARK:
        assert (result.exit_code, told, verdict[-13:]) == (0, [], "nothing wrong")
    else:  # as run says it
        assert (result.exit_code, len(told)) == (3, 1)
        assert told[0].startswith("error: Spark needs pyspark: ")


OF_A_SESSION = """
from sluiceway.connector.lib import CollectionSource

class Orders(CollectionSource):
    needs_program = True

flow = sw.Pipeline("plan")
flow.source(Orders([1])).uid("orders").print()
"""


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [([], False), (["--checkpoints", "kept"], True), (["--checkpoints", "kept", "--hosted"], False)],
)
def test_check_names_sources_that_micro_batches_cannot_plan(
    sluiceway: Any, write: Any, options: list[str], is_refused: bool
) -> None:
    write("job.py", OF_A_SESSION)
    result = sluiceway("check", "job.py", "--engine", "spark", *options)
    assert result.exit_code == (2 if is_refused else 0 if HAS_SPARK else 3)
    told = (
        "engine 'spark' in micro-batches does not have sources that are planned in the program itself "
        "(SparkSource): micro-batches are planned where there is no session; run it without --checkpoints and "
        "--from, as a batch job, or with --hosted"
    )
    assert (told in result.stdout) == is_refused


def test_a_savepoint_is_refused_before_the_signal_where_the_engine_takes_none(sluiceway: Any, write: Any) -> None:
    write("job.py", FLOW)
    result = sluiceway("run", "job.py", "--engine", "spark", "--savepoint", "kept")
    assert result.exit_code == 2
    assert "--savepoint: engine 'spark' in a batch job does not have savepoints: " in result.stderr


def test_check_with_warnings_is_0_and_with_errors_2(sluiceway: Any, write: Any) -> None:
    write("job.py", FLOW)
    result = sluiceway("check", "job.py")
    assert result.exit_code == 0
    assert "[unstable-uid]" in result.stdout
    assert result.stdout.endswith("\npipeline 'plan': 1 warning\n")

    write("job.py", FLOW + "flow.from_collection([1]).map(str).uid('m')")
    result = sluiceway("check", "job.py")
    assert result.exit_code == 2
    *lines, verdict = result.stdout.splitlines()
    assert verdict.startswith("pipeline 'plan': ")
    assert " errors and " in verdict
    findings = json.loads(sluiceway("check", "job.py", "--json").stdout)
    assert len(findings) == len(lines)
    assert {f["level"] for f in findings} == {"error", "warning"}
    assert all(f["location"].startswith("job.py:") for f in findings if f["step"])


# -- new ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "folder"), [("plugin", "sluiceway-mqtt"), ("pipeline", "mqtt")])
def test_new_writes_a_project(sluiceway: Any, place: Path, kind: str, folder: str) -> None:
    result = sluiceway("new", kind, "mqtt")
    assert result.exit_code == 0, result.output
    *files, _, last = result.stdout.splitlines()
    assert f"{folder}/README.md" in files
    assert all((place / f).is_file() for f in files)
    assert last == f"{folder} is ready; {folder}/README.md says how to go on."
    again = sluiceway("new", kind, "mqtt")
    assert again.exit_code == 2
    assert again.stderr.startswith(f"error: {folder} is there already")


def test_new_elsewhere(sluiceway: Any, place: Path) -> None:
    assert sluiceway("new", "pipeline", "mqtt", "--directory", "a/b").exit_code == 0
    assert (place / "a" / "b" / "README.md").is_file()


def test_new_where_nothing_can_be_written(sluiceway: Any, place: Path) -> None:
    (place / "file").touch()
    for kind in ("pipeline", "plugin"):
        result = sluiceway("new", kind, "mqtt", "--directory", "file/mqtt")
        assert (result.exit_code, result.stderr) == (2, "error: file/mqtt cannot be written: Not a directory\n")


def test_new_with_a_bad_name(sluiceway: Any) -> None:
    result = sluiceway("new", "pipeline", "Not A Name")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: 'Not A Name' cannot be the name of a pipeline")


def test_the_list_of_commands_says_each_in_one_line(sluiceway: Any) -> None:
    listed = sluiceway("--help").stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert len(listed) > 10
    assert [line for line in listed if line.endswith("...") or line.startswith("     ")] == []
