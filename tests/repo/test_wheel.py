"""The distribution as people get it: a wheel is built, looked into, and installed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "core" / "sluiceway", *(p.parent for p in ROOT.glob("plugins/*/*/__init__.py"))]
NOT_OURS = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT))
    (made,) = out.glob("sluiceway-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the installed wheel is found before everything else."""
    target = tmp_path_factory.mktemp("installed")
    call(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel))
    return clean_environment() | {"PYTHONPATH": str(target)}


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLUICEWAY_", "PYTEST_", "PYTHON"))}


def call(*command: str, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    result = subprocess.run(
        command,
        env=clean_environment() if environment is None else environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}"
    return result.stdout


def test_all_files_of_all_packages_are_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for source in SOURCES:
        files = [f.relative_to(source.parent) for f in source.rglob("*") if f.is_file()]
        wanted = {str(f) for f in files if not NOT_OURS.intersection(f.parts)}
        assert wanted <= names, f"missing: {wanted - names}"
        assert f"{source.name}/py.typed" in names


def test_nothing_else_is_in_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    found_by_spark = {"pyspark_sluiceway.py"}
    assert {t for t in tops if not t.endswith(".dist-info")} == {s.name for s in SOURCES} | found_by_spark
    assert not [n for n in names if n.endswith(".pyc")]
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)


def test_it_runs_where_it_is_installed(installed: dict[str, str], tmp_path: Path) -> None:
    where = "import sluiceway, sluiceway_socket; print(sluiceway.__file__); print(sluiceway_socket.__file__)"
    files = call(sys.executable, "-c", where, environment=installed, cwd=tmp_path).split()
    assert all(f.startswith(installed["PYTHONPATH"]) for f in files)
    version = call(sys.executable, "-m", "sluiceway", "version", environment=installed, cwd=tmp_path)
    assert "0." in version
    listed = call(sys.executable, "-m", "sluiceway", "plugins", "list", environment=installed, cwd=tmp_path)
    assert "memory" in listed
    assert "socket" in listed


@pytest.mark.slow
def test_a_new_environment_needs_nothing_else(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    tools = tmp_path / "venv" / "bin"
    call(str(tools / "pip"), "install", "--quiet", str(wheel))
    call(str(tools / "sluiceway"), "new", "pipeline", "click-counts", cwd=tmp_path)
    printed = call(str(tools / "sluiceway"), "run", "click_counts.pipeline:flow", cwd=tmp_path / "click-counts")
    assert "('/prices', 2)" in printed


@pytest.mark.slow
def test_a_wheel_made_from_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    (made,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(made).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())
