"""Manifests for Kubernetes: their syntax, and that they say that they were not run."""

from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "contrib" / "kubernetes"


@pytest.mark.parametrize("path", sorted(PLACE.glob("*.yaml")), ids=lambda path: path.name)
def test_manifests_parse_and_say_that_they_were_not_run(path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    text = path.read_text()
    assert text.startswith("# Not run; see README.md.\n")
    objects = list(yaml.safe_load_all(text))
    assert all(found["kind"] and found["metadata"]["name"] for found in objects)
    for conf in [found["data"]["spark-defaults.conf"] for found in objects if found["kind"] == "ConfigMap"]:
        assert all(len(line.split()) == 2 for line in conf.splitlines()), "a name and a value on each line"
