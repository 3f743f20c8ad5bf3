"""ES modules of others: what is there is what is recorded, and is renewed as a whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def vendored() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vendored", ROOT / "plugins" / "web" / "vendored.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["vendored"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    del sys.modules["vendored"]
    return module


def test_the_files_are_what_is_recorded(vendored: ModuleType) -> None:
    files = vendored.recorded()
    for file in files:
        content = (vendored.VENDOR / file.file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256, file.file
    own = {"README.md", vendored.RECORD.name}
    assert {path.name for path in vendored.VENDOR.iterdir()} == {file.file for file in files} | own
    assert (vendored.VENDOR / "README.md").read_text() == vendored.table(files)


def archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name.replace('__', '/')}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def npm(vendored: ModuleType, **changed: bytes) -> Callable[[str, str], bytes]:
    """Return what stands for npm: the files that are here, some of them changed."""
    here = {f.package: {} for f in vendored.recorded()}
    for file in vendored.recorded():
        name = file.path.replace("/", "__")
        here[file.package][name] = changed.get(file.package, (vendored.VENDOR / file.file).read_bytes())

    def fetch(package: str, version: str) -> bytes:
        return archive(**here[package])

    return fetch


@pytest.fixture
def place(vendored: ModuleType, tmp_path: Path) -> Path:
    return Path(shutil.copytree(vendored.VENDOR, tmp_path / "vendor"))


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


def test_a_renewal_of_the_recorded_versions_changes_nothing(vendored: ModuleType, place: Path) -> None:
    before = contents(place)
    assert vendored.renew({}, place, npm(vendored)) == []
    assert contents(place) == before


def test_a_lost_file_is_written_again(vendored: ModuleType, place: Path) -> None:
    before = contents(place)
    (place / "htm-preact.mjs").write_text("gone")
    (said,) = vendored.renew({}, place, npm(vendored))
    assert said.startswith("htm-preact.mjs: htm 3.1.1 -> 3.1.1")
    assert contents(place) == before


def test_another_version_is_recorded(vendored: ModuleType, place: Path) -> None:
    said = vendored.renew({"preact": "99.0.0"}, place, npm(vendored, preact=b"new"))
    digest = hashlib.sha256(b"new").hexdigest()
    assert said == [f"LICENSE-preact: preact 10.5.14 -> 99.0.0, sha256 {digest}"]
    assert (place / "LICENSE-preact").read_bytes() == b"new"
    assert f"| 99.0.0 | `{digest}` | MIT |" in (place / "README.md").read_text()
    assert [f.version for f in vendored.recorded(place / "modules.json") if f.package == "preact"] == ["99.0.0"]


def test_other_bytes_of_the_recorded_version_are_refused(vendored: ModuleType, place: Path) -> None:
    before = contents(place)
    with pytest.raises(vendored.VendorError, match=r"LICENSE of preact 10.5.14 has the sha256 \w+, recorded is"):
        vendored.renew({"htm": "99.0.0"}, place, npm(vendored, preact=b"tampered"))
    assert contents(place) == before


def test_what_cannot_be_had_is_said(vendored: ModuleType, place: Path) -> None:
    with pytest.raises(vendored.VendorError, match="nothing here is from vue: the packages are htm, preact"):
        vendored.renew({"vue": "1.0"}, place, npm(vendored))
    with pytest.raises(vendored.VendorError, match=r"htm has no file preact/standalone\.mjs"):
        vendored.renew({}, place, lambda package, version: archive(other=b""))


def test_a_missing_npm_is_said(vendored: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(vendored.VendorError, match="npm is not installed"):
        vendored.package_of_npm("htm", "3.1.1")
