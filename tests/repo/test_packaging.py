"""Every plugin under plugins/ is built, found, checked and written about; the floors are complete."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOL = PROJECT["tool"]
WHEEL = TOOL["hatch"]["build"]["targets"]["wheel"]
CONTRACTS = {c["id"]: c for c in TOOL["importlinter"]["contracts"]}

PLUGINS = sorted(p.parent for p in ROOT.glob("plugins/*/*/__init__.py"))
NAMES = [p.name for p in PLUGINS]
each_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=NAMES)


def test_the_plugins_are_found() -> None:
    assert {"sluiceway_memory", "sluiceway_socket", "sluiceway_files"} <= set(NAMES)


@each_plugin
def test_a_plugin_is_in_the_wheel_and_in_an_editable_install(plugin: Path) -> None:
    assert str(plugin.relative_to(ROOT)) in WHEEL["packages"]
    assert str(plugin.parent.relative_to(ROOT)) in WHEEL["dev-mode-dirs"]
    assert str(plugin.parent.relative_to(ROOT)) in TOOL["ruff"]["src"]


def test_the_wheel_holds_nothing_that_is_not_there() -> None:
    packages = [ROOT / p for p in WHEEL["packages"]]
    assert sorted(packages) == sorted([ROOT / "core" / "sluiceway", *PLUGINS])


def test_the_entry_points_are_the_plugins() -> None:
    points = PROJECT["project"]["entry-points"]["sluiceway"]
    assert sorted(points.values()) == sorted(NAMES)
    assert all(f"sluiceway_{name}" == package for name, package in points.items())


@each_plugin
def test_a_plugin_is_type_checked_and_says_so(plugin: Path) -> None:
    assert plugin.name in TOOL["mypy"]["packages"]
    assert (plugin / "py.typed").exists()


@each_plugin
def test_a_plugin_is_held_to_the_import_contracts(plugin: Path) -> None:
    assert plugin.name in TOOL["importlinter"]["root_packages"]
    assert plugin.name in CONTRACTS["core"]["forbidden_modules"]
    kind = "engines" if "def sluiceway_engines(" in (plugin / "__init__.py").read_text() else "plugins"
    assert plugin.name in CONTRACTS[kind]["source_modules"]
    assert plugin.name in CONTRACTS["apart"]["modules"]


@each_plugin
def test_a_plugin_is_in_the_documents(plugin: Path) -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    assert any(f"`{plugin.name}`" in row for row in rows), "not in the README's table of plugins"
    pages = [page for page in ROOT.glob("docs/**/*.md") if plugin.name in page.read_text()]
    assert pages, "no page of docs/ speaks of it"


@each_plugin
def test_a_plugin_init_has_hooks_and_nothing_else(plugin: Path) -> None:
    tree = ast.parse((plugin / "__init__.py").read_text())
    for statement in tree.body:
        what = ast.unparse(statement)
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.ImportFrom(module=str(module)) if module == "sluiceway.hooks" or is_standard(module):
                pass
            case ast.Import(names=names) if all(is_standard(n.name) for n in names):
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.Assign() | ast.AnnAssign():
                assert not any(isinstance(n, ast.Call) for n in ast.walk(statement)), what
            case ast.FunctionDef(name=name, decorator_list=decorators):
                hook = any(ast.unparse(d).startswith("hookimpl") for d in decorators)
                assert hook == name.startswith("sluiceway_"), f"{name} of {plugin.name}"
            case _:
                pytest.fail(f"{plugin.name}/__init__.py holds: {what}")


def is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


@each_plugin
def test_what_a_plugin_tells_people_to_install_is_an_extra(plugin: Path) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    everything = re.findall(r"[\w-]+", " ".join(extras["all"]))
    module = importlib.import_module(plugin.name)
    hooks = [getattr(module, name) for name in dir(module) if name.startswith("sluiceway_")]
    assert hooks
    offering = [hook for hook in hooks if callable(hook) and "Offer" in str(hook.__annotations__.get("return"))]
    offers = [offer for hook in offering for offer in hook()]
    assert offers
    for offer in offers:
        needs = (*offer.requires, *offer.libraries)
        assert bool(needs) == bool(offer.extra), f"{offer.name}: what it requires, and how to get it"
        if offer.extra:
            assert offer.extra in extras
            assert offer.extra in everything or offer.libraries, f"{offer.name}: loading it takes no more than all"


def test_the_extra_for_spark_has_what_workers_on_spark_talk_by() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras["zmq"]) <= set(extras["spark"])


# ---- the floors -------------------------------------------------------------------------------------------


def floors() -> dict[str, set[str]]:
    """From the comments and layers of the contract: what stands on each floor."""
    text = (ROOT / "pyproject.toml").read_text()
    layers = re.search(r'id = "floors".*?layers = \[\n(.*?)\n\]', text, re.S)
    assert layers
    found: dict[str, set[str]] = {}
    floor = "top"
    for line in layers[1].splitlines():
        if comment := re.fullmatch(r" *# (\d) \w+", line):
            floor = comment[1]
        else:
            found.setdefault(floor, set()).update(f"sluiceway.{m}" for m in re.findall(r"\w+", line))
    return found


def test_plugins_may_import_the_two_lowest_floors() -> None:
    above = set().union(*(modules for floor, modules in floors().items() if floor not in ("0", "1")))
    assert set(CONTRACTS["plugins"]["forbidden_modules"]) == above


def test_the_three_lowest_floors_are_pure() -> None:
    low = floors()["0"] | floors()["1"] | floors()["2"]
    assert set(CONTRACTS["pure"]["source_modules"]) == low


def test_contributing_has_the_floors_as_they_are() -> None:
    rows = re.findall(r"^\| (\d) \w+ \|[^|]*\|(.*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    said = {floor: {f"sluiceway.{m}" for m in re.findall(r"`(\w+)/?`", modules)} for floor, modules in rows}
    assert said == {floor: modules for floor, modules in floors().items() if floor != "top"}


THIRD_PARTY = [
    *ROOT.glob("contrib/*/sluiceway_*/*.py"),
    *ROOT.glob("core/sluiceway/templates/plugin/sluiceway_*/*.py"),
]


@pytest.mark.parametrize("path", THIRD_PARTY, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_what_third_parties_take_for_an_example_keeps_to_the_rule(path: Path) -> None:
    allowed = floors()["0"] | floors()["1"]
    imports = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import | ast.ImportFrom)]
    modules = {n.module or "" if isinstance(n, ast.ImportFrom) else a.name for n in imports for a in n.names}
    assert {m for m in modules if m.split(".")[0] == "sluiceway"} <= allowed
