"""The commands of messages about what is missing work where the program runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sluiceway.util import install_hints as installing
from sluiceway.util.install_hints import install_command


@pytest.fixture
def thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``thing(origin)``: a distribution of that name, with what its installer wrote down of where it came from."""
    info = tmp_path / "site" / "thing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(info.parent)

    def write(origin: Any) -> None:
        (info / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))

    return write


def test_from_an_index(thing: Any) -> None:
    assert install_command("thing[fast]") == 'pip install "thing[fast]"'
    assert install_command("thing") == "pip install thing"
    assert install_command("not-there[fast]>=1", "other") == 'pip install "not-there[fast]>=1" other'


def test_from_a_checkout(thing: Any, tmp_path: Path) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    thing({"url": place.as_uri(), "dir_info": {"editable": True}})
    assert install_command("thing[fast]") == f"pip install -e '{place}[fast]'"
    thing({"url": place.as_uri(), "dir_info": {}})
    assert install_command("thing[fast,new]") == f"pip install '{place}[fast,new]'"
    place.rmdir()
    assert install_command("thing[fast]") == 'pip install "thing[fast]"', "it is gone"


def test_from_a_url(thing: Any) -> None:
    thing({"url": "https://example.org/thing-1.0-py3-none-any.whl", "archive_info": {}})
    assert (
        install_command("thing[fast]")
        == 'pip install "thing[fast] @ https://example.org/thing-1.0-py3-none-any.whl"'
    )
    thing({"url": "https://example.org/thing", "vcs_info": {"vcs": "git", "commit_id": "abc123"}})
    assert install_command("thing[fast]") == 'pip install "thing[fast] @ git+https://example.org/thing@abc123"'
    thing("no JSON")
    assert install_command("thing[fast]") == 'pip install "thing[fast]"'


def test_the_pip_of_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "pip"
    other.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("polars") == f"{sys.executable} -m pip install polars", "pip is that of another Python"
    monkeypatch.setattr(installing, "find_spec", lambda name: None)
    (tmp_path / "uv").touch(0o755)
    assert install_command("polars") == f"uv pip install --python {sys.executable} polars"
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert install_command("polars").endswith("pip install polars")


def test_messages_about_extras_all_go_by_it() -> None:
    root = Path(__file__).parents[3]
    for folder in ("core", "plugins"):
        for file in (root / folder).rglob("*.py"):
            if file.name != "install_hints.py" and "templates" not in file.parts:
                assert "pip install" not in file.read_text(), f"{file}: call install_command()"
