"""The reference is complete: every public name, every option, every command and exit code, every hook."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import click
import pytest

import sluiceway
import sluiceway.testing
from sluiceway import exit_codes
from sluiceway.cli.app import COMMANDS, app
from sluiceway.cli.config import _shown
from sluiceway.config.settings import OPTIONS, Settings
from sluiceway.plugins import hookspecs
from sluiceway.plugins.kinds import KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = {page.name: page.read_text() for page in (DOCS / "reference").glob("*.md")}
SHOWN = {name for text in REFERENCE.values() for name in re.findall(r"^::: ([\w.]+)$", text, re.M)}


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of each row of the table whose heading begins with ``first``."""
    table = re.search(rf"^\| {first} .*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    assert table, f"no table with the heading {first!r}"
    return [re.split(r" \| ", line.strip("| ")) for line in table[1].splitlines()]


def test_every_public_name_is_in_the_reference() -> None:
    errors = {f"sluiceway.{name}" for name in sluiceway.__all__ if hasattr(sluiceway.errors, name)}
    public = {f"sluiceway.{name}" for name in sluiceway.__all__} - errors - {"sluiceway.__version__"}
    assert public - SHOWN == set()
    assert "sluiceway.errors" in SHOWN  # the whole module


def test_everything_for_tests_is_in_the_reference() -> None:
    names = {f"sluiceway.testing.{name}" for name in sluiceway.testing.__all__}
    assert names - SHOWN - {"sluiceway.testing.VirtualClock"} == set()
    assert "sluiceway.clock.VirtualClock" in SHOWN


def test_the_table_of_options_is_that_of_the_code() -> None:
    told = [row[:3] for row in rows(REFERENCE["options.md"], "option")]
    defaults = Settings()
    assert told == [
        [f"`{name}`", option.expects, _shown(name, getattr(defaults, option.field))]
        for name, option in OPTIONS.items()
    ]
    for name, option in OPTIONS.items():
        assert option.variable == "SLUICEWAY_" + name.upper().replace("-", "_")  # as the page says
    assert {option.field for option in OPTIONS.values()} == set(Settings.__dataclass_fields__)


def test_every_scheduler_is_named() -> None:
    from sluiceway.scheduler.strategies import SCHEDULERS

    (row,) = [row for row in rows(REFERENCE["options.md"], "option") if row[0] == "`scheduler`"]
    assert set(re.findall(r"`([\w-]+)`", row[-1])) == set(SCHEDULERS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_its_options_are_in_the_reference(name: str) -> None:
    text = REFERENCE["cli.md"]
    command = app.get_command(click.Context(app), name)
    commands = command.commands.items() if isinstance(command, click.Group) else [("", command)]
    for sub, each in commands:
        section = re.search(rf"^## {re.escape(f'{name} {sub}'.strip())}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        assert section, f"no section for {name} {sub}"
        assert each is not None
        own = [p for p in each.params if isinstance(p, click.Option) and not p.hidden]
        for option in own:
            flag = option.opts[0]
            if flag.removeprefix("--") not in OPTIONS:
                assert f"`{flag}" in section[1], f"{name} {sub}: {flag}"


def test_the_exit_codes_are_those_of_the_code() -> None:
    told = rows((DOCS / "howto/exit-codes.md").read_text(), "code")
    plain = {int(code): meaning.replace("\\|", "|").replace("`", "") for code, meaning in told}
    assert set(plain) == set(exit_codes.EXPLAINED)
    for code in set(plain) - {exit_codes.BROKEN_PIPE}:
        assert plain[code] == exit_codes.EXPLAINED[code]


def test_every_error_is_in_the_reference_and_says_what_it_is() -> None:
    from sluiceway import errors

    for name in set(errors.__all__) - {"choose"}:
        assert (getattr(errors, name).__doc__ or "").strip(), name


def test_the_guide_has_every_hook() -> None:
    told = set(re.findall(r"`(sluiceway_\w+)`", (DOCS / "plugins.md").read_text()))
    offering = {kind.hook for kind in KINDS}
    # These have a place, and nothing that would use what they offer.
    unused = {"sluiceway_checkpoint_completed", "sluiceway_checkpoint_failed"}
    assert set(hookspecs.__all__) - unused <= told
    assert (offering - unused) <= told


def floors(page: Path) -> dict[str, set[str]]:
    """The table of floors: by number, the modules."""
    told = re.findall(r"^\| (\d) \w+ \|[^|]*\|(.*)\|$", page.read_text(), re.M)
    return {floor: set(re.findall(r"`(\w+)/?`", modules)) for floor, modules in told}


def test_the_architecture_has_the_floors_as_they_are() -> None:
    # CONTRIBUTING.md is held against the import contracts.
    assert floors(DOCS / "architecture.md") == floors(ROOT / "CONTRIBUTING.md")


def test_the_guide_says_what_a_plugin_may_import() -> None:
    guide = (DOCS / "plugins.md").read_text()
    section = re.search(r"^## What a plugin may import\n.*?(?=^Everything above)", guide, re.M | re.S)
    assert section
    low = floors(ROOT / "CONTRIBUTING.md")
    assert set(re.findall(r"`sluiceway\.(\w+)`", section[0])) == low["0"] | low["1"]


def test_every_page_can_be_reached() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert re.search(rf"\b{re.escape(str(page.relative_to(DOCS)))}$", nav, re.M), page


def test_the_tables_of_what_engines_can_do_are_those_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("engines_page", DOCS / "engines.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = REFERENCE["engines.md"]
    assert text == maker.page(text), "python docs/engines.py writes them"
    for feature in maker.Feature:
        assert text.count(f"\n| {feature.text} | ") == 1


def test_the_reference_of_the_rest_api_is_that_of_the_code() -> None:
    pytest.importorskip("starlette", reason='not installed: pip install "sluiceway[web]"')
    spec = importlib.util.spec_from_file_location("rest_page", DOCS / "rest.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = REFERENCE["rest.md"]
    assert text == maker.page(text), "python docs/rest.py writes it"
    for path in ("/jobs/{job}", "/taskmanagers/{worker}", "/jobs/{job}/diagnosis"):
        assert text.count(f"\n| GET | `{path}` | ") == 1
    assert len(maker.FLINK) == len(set(maker.FLINK))


@pytest.fixture(scope="module")
def the_map() -> Any:
    spec = importlib.util.spec_from_file_location("map_of_the_core", DOCS / "map.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker


def test_the_map_is_that_of_the_code(the_map: Any) -> None:
    text = (DOCS / "architecture.md").read_text()
    assert text == the_map.page(text), "python docs/map.py writes it, python docs/figures draws it"


def test_the_map_names_nothing_that_does_not_exist(the_map: Any) -> None:
    the_map.check("network/input_gate.py:InputGate.poll")
    for place in (
        "network/nothing.py:InputGate",
        "network/input_gate.py:Nothing",
        "network/input_gate.py:InputGate.no",
    ):
        with pytest.raises(LookupError, match="does not exist"):
            the_map.check(place)


def test_the_page_of_additions_names_files_that_exist() -> None:
    named = re.findall(r"`((?:core|plugins|tests|docs)/[\w/.-]+)`", (DOCS / "howto" / "add.md").read_text())
    assert len(named) > 20
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_the_page_of_additions_names_every_receiver_of_control_messages() -> None:
    page = (DOCS / "howto" / "add.md").read_text()
    sources = [path.read_text() for path in (ROOT / "core" / "sluiceway" / "runtime").rglob("*.py")]
    receivers = {
        name for source in sources for name in re.findall(r"^class ([A-Z]\w+)\(Handlers\):", source, re.M)
    }
    assert len(receivers) > 10
    assert {name for name in receivers if f"`{name}`" not in page} == set()
