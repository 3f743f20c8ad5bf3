"""What the site has beyond its pages: links to the reference, the version, tabs."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("links", ROOT / "docs" / "links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linked(hooks: Any, html: str, page: str = "tutorial.md") -> str:
    file = SimpleNamespace(src_uri=page)
    return str(hooks.on_page_content(html, page=SimpleNamespace(file=file)))


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("KeyedProcessFunction", "sluiceway.KeyedProcessFunction"),
        ("sw.Pipeline", "sluiceway.Pipeline"),
        ("DataStream.map", "sluiceway.DataStream.map"),
        ("DataStream.take(10)", "sluiceway.DataStream.take"),
        ("FilesSource.text(paths)", "sluiceway_files.FilesSource.text"),
    ],
)
def test_names_of_the_api_link_to_the_reference(hooks: Any, code: str, target: str) -> None:
    html = f"<p>see <code>{code}</code></p>"
    wanted = f'<p>see <autoref identifier="{target}" optional><code>{code}</code></autoref></p>'
    assert linked(hooks, html) == wanted


@pytest.mark.parametrize(
    "html",
    [
        "<p><code>map</code>, <code>register</code>, <code>Event</code>, <code>sluiceway run</code></p>",
        '<p><a href="x"><code>Pipeline</code></a></p>',
        "<h2>About <code>Pipeline</code></h2>",
        "<pre><code>Pipeline</code></pre>",
    ],
)
def test_other_words_and_what_is_a_link_already_stay(hooks: Any, html: str) -> None:
    assert linked(hooks, html) == html


def test_the_reference_itself_is_left_alone(hooks: Any) -> None:
    html = "<p><code>Pipeline</code></p>"
    assert linked(hooks, html, "reference/api.md") == html


def test_the_version_is_shown(hooks: Any) -> None:
    config = hooks.on_config(SimpleNamespace(site_name="Sluiceway"))
    assert config.site_name == f"Sluiceway {version('sluiceway')}"


def test_the_tabs() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert re.findall(r"^  - (\w+):", nav, re.M)[:5] == ["Home", "Build", "Operate", "Extend", "Reference"]
