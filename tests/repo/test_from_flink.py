"""Tables for people who come from Flink and others: what is said to be here is here, what is not is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import sluiceway as sw
from sluiceway.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "from-flink.md"


class Entry(NamedTuple):
    line: int
    flink: str
    here: str
    remarks: str


def entries() -> Iterator[Entry]:
    names = False
    for number, line in enumerate(PAGE.read_text().splitlines(), start=1):
        if not line.startswith("|"):
            names = False
        elif line.startswith("| Flink |"):
            names = True
        elif names and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, f"line {number}: three columns are wanted"
            yield Entry(number, *cells)


ENTRIES = list(entries())
OTHERS = [
    row
    for row in PAGE.with_name("from-others.md").read_text().splitlines()
    if row.startswith("| ") and not row.endswith("| here | remarks |")
]


def find(name: str) -> Any:
    """What is called so: a name of sluiceway, of one of its modules, or a module."""
    module: Any = sw
    path = name.split(".")
    if path[0].startswith("sluiceway"):
        module = import_module(path.pop(0))
    elif not hasattr(sw, path[0]):
        module = import_module(f"sluiceway.{path.pop(0)}")
    for part in path:
        module = getattr(module, part)
    return module


def check(name: str) -> None:
    if name.startswith("--"):
        run = app.get_command(click.Context(app), "run")
        assert run is not None
        options = {o for parameter in run.params for o in (*parameter.opts, *parameter.secondary_opts)}
        assert name in options
    elif name.startswith("sluiceway "):
        words = name.removeprefix("sluiceway ").split()
        command: click.Command | None = app
        while words and not words[0].startswith("--"):
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None
        assert {*words} <= {o for parameter in command.params for o in parameter.opts}
    elif keyword := re.fullmatch(r"(.*)\((\w+)=\)", name):
        assert keyword[2] in inspect.signature(find(keyword[1])).parameters
    else:
        find(name)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"line {entry.line}")
def test_what_is_named_is_there(entry: Entry) -> None:
    names = re.findall(r"`([^`]+)`", entry.here)
    if entry.here != "not there":
        assert names, "a name in backquotes, or 'not there'"
        assert not re.sub(r"`[^`]+`|[, ]|and", "", entry.here), "names and nothing else"
    for name in names + re.findall(r"`(--[^`]+)`", entry.remarks):
        check(name)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.here == "not there"], ids=lambda e: f"line {e.line}")
def test_what_is_not_there_is_not(entry: Entry) -> None:
    for name in re.findall(r"`(\w+)(?:\(\))?`", entry.flink):
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        for owner in (sw, sw.Pipeline, sw.DataStream, sw.KeyedStream, sw.WindowedStream, sw.RuntimeContext):
            for spelled in {name, snake} - {"set_parallelism", "set_max_parallelism"}:
                assert not hasattr(owner, spelled), f"{owner!r} has {spelled}"


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.here == "not there"], ids=lambda e: f"line {e.line}")
def test_what_is_not_there_says_what_to_use(entry: Entry) -> None:
    flow = sw.Pipeline()
    owners = (sw, flow, flow.from_collection([1]))
    names = re.findall(r"`(\w+)(?:\(\))?`", entry.flink)
    for name in names:
        said = []
        for owner in owners:
            with pytest.raises(AttributeError) as caught:
                getattr(owner, name)
            said.append(str(caught.value))
        assert any("; " in text for text in said), said


@pytest.mark.parametrize("row", OTHERS)
def test_what_is_named_for_those_who_come_from_other_libraries_is_there(row: str) -> None:
    _, here, _ = row.removeprefix("| ").split(" | ", 2)
    assert here == "not there" or not re.sub(r"`[^`]+`|[, ]", "", here), "names and nothing else"
    for name in re.findall(r"`([^`]+)`", here):
        check(name)


def test_every_method_of_a_stream_is_mentioned_or_is_our_own() -> None:
    own = {
        "async_map",
        "for_each",
        "returns",
        "set_buffer_timeout",
        "on_error",
        "dead_letters",
        "to_columns",
        "with_timestamp_column",
    }
    page = PAGE.read_text()
    for owner in (sw.DataStream, sw.KeyedStream, sw.WindowedStream, sw.WatermarkStrategy):
        for name, value in vars(owner).items():
            if not name.startswith("_") and callable(value) and name not in own:
                assert re.search(rf"`(\w+\.)?{name}[`(]", page), f"{owner.__name__}.{name}"


def test_a_name_that_is_not_there_is_noticed() -> None:
    for wrong in ("DataStream.mop", "windows.Nothing", "--nothing", "Pipeline(nothing=)", "sluiceway nothing"):
        with pytest.raises((AssertionError, AttributeError, ModuleNotFoundError)):
            check(wrong)
