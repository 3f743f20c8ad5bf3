"""Throw-away distributions: real metadata and modules in a directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from textwrap import dedent

import pytest

from sluiceway.plugins import PluginManager, Problem


class Site:
    """A directory of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, code: str = "", *, version: str = "1.0", points: str | None = None) -> None:
        """Install a distribution with one module, called as the distribution with underscores.

        ``points`` is the text of the group's entry points; by default one, called as the distribution.
        """
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(
            "from sluiceway.hooks import Offer, hookimpl\n" + dedent(code), encoding="utf-8"
        )
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        points = f"{name} = {module}" if points is None else points
        (info / "entry_points.txt").write_text(f"[sluiceway]\n{points}\n")

    def distributions(self) -> list[Distribution]:
        return list(distributions(path=[str(self.folder)]))


class Managed(PluginManager):
    """A plugin manager that knows the distributions of a site and no other, and keeps what it reports."""

    def __init__(self, site: Site, environ: dict[str, str] | None = None) -> None:
        self.told: list[Problem] = []
        super().__init__(environ or {}, self.told.append, site.distributions())

    @property
    def messages(self) -> list[str]:
        return [problem.message for problem in self.told]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def manage(site: Site) -> Callable[..., Managed]:
    """``manage(SLUICEWAY_DISABLE_PLUGINS=...)``: a manager over the site."""
    return lambda **environ: Managed(site, environ)
