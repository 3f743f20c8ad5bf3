"""The pictures in docs/assets that are made by a program are what the program makes."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"


def test_drawing_them_again_changes_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "docs" / "figures"), str(tmp_path)], check=True)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 13
    for picture in drawn:
        assert (ASSETS / picture.name).read_text() == picture.read_text(), "run: python docs/figures"


def test_every_picture_says_what_it_shows() -> None:
    for picture in ASSETS.glob("*.svg"):
        root = ElementTree.parse(picture).getroot()
        for tag in ("title", "desc"):
            found = root.find(f"{{http://www.w3.org/2000/svg}}{tag}")
            assert found is not None, picture.name
            assert found.text, picture.name
            assert found.attrib["id"] in root.attrib["aria-labelledby"]
