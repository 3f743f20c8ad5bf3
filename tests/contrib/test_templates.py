"""How a template becomes a project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sluiceway.errors import ConfigurationError, UnknownNameError
from sluiceway.templates import TEMPLATES, instantiate

pytestmark = pytest.mark.docs


def test_every_spelling_of_the_name_is_replaced(tmp_path: Path) -> None:
    written = instantiate("plugin", "click-stream", tmp_path / "project")
    assert written == sorted(p for p in (tmp_path / "project").rglob("*") if p.is_file())
    project = tomllib.loads((tmp_path / "project" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "sluiceway-click-stream"
    assert project["project"]["entry-points"]["sluiceway"] == {"click-stream": "sluiceway_click_stream"}
    assert "class ClickStreamSource" in (tmp_path / "project/sluiceway_click_stream/_source.py").read_text()
    for path in written:
        everything = str(path.relative_to(tmp_path)) + path.read_text()
        assert "plugin" not in path.name
        for spelling in ("myplugin", "my-plugin", "MyPlugin"):
            assert spelling not in everything


def test_a_plugin_does_not_bear_the_prefix_twice(tmp_path: Path) -> None:
    instantiate("plugin", "sluiceway-mqtt", tmp_path)
    assert (tmp_path / "sluiceway_mqtt" / "__init__.py").exists()


def test_what_caches_leave_in_the_template_stays_there(tmp_path: Path) -> None:
    written = instantiate("pipeline", "orders", tmp_path)
    assert not [p for p in written if "cache" in str(p.relative_to(tmp_path))]


@pytest.mark.parametrize(
    "name", ["Clicks", "2clicks", "click counts", "click--counts", "-clicks", "", "../x", "é"]
)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_name_that_no_package_can_have(template: str, name: str, tmp_path: Path) -> None:
    kind = template.partition("_")[0]
    with pytest.raises(ConfigurationError, match=f"cannot be the name of a {kind}: take lower-case letters"):
        instantiate(template, name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["json", "class", "sluiceway", "tests"])
def test_a_pipeline_does_not_hide_a_module(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a module of that name exists already"):
        instantiate("pipeline", name, tmp_path)


@pytest.mark.parametrize("name", ["files", "sluiceway-files"])
def test_a_plugin_does_not_hide_an_installed_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'files' .*: a package sluiceway_files is installed already"):
        instantiate("plugin", name, tmp_path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(ConfigurationError, match="is there already and is not an empty directory"):
        instantiate("plugin", "clicks", tmp_path)
    with pytest.raises(ConfigurationError, match="is there already"):
        instantiate("plugin", "clicks", tmp_path / "precious")
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_an_unknown_template() -> None:
    with pytest.raises(UnknownNameError, match=r"no template 'plugins'\. Did you mean 'plugin'"):
        instantiate("plugins", "clicks", Path("unused"))


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_written_is_in_good_style(template: str, tmp_path: Path) -> None:
    instantiate(template, "clicks", tmp_path)
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache"]
        result = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("template", ["pipeline", "pipeline_kafka"])
def test_a_new_pipeline_has_nothing_to_be_warned_of(template: str, tmp_path: Path) -> None:
    if template == "pipeline_kafka":
        pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
    instantiate(template, "clicks", tmp_path)
    check = [sys.executable, "-m", "sluiceway", "check", "clicks.pipeline:flow"]
    result = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "warning" not in result.stdout


def test_a_pipeline_for_kafka_without_its_client_says_what_to_install(tmp_path: Path) -> None:
    missing = 'raise ModuleNotFoundError("no confluent_kafka", name="confluent_kafka")'
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "confluent_kafka.py").write_text(missing)
    instantiate("pipeline_kafka", "clicks", tmp_path / "new")
    run = [sys.executable, "-m", "sluiceway", "run", "clicks.pipeline:flow"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "fake")}
    result = subprocess.run(run, cwd=tmp_path / "new", env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (3, "")
    assert re.fullmatch(r"error: KafkaSink needs confluent_kafka: .*pip install .*\[kafka\].*\n", result.stderr)
