"""Serializers that plugins offer are asked before the built-in ones, and a broken one stops the job."""

from fractions import Fraction
from typing import Any

import pytest

from sluiceway.errors import PluginError
from sluiceway.serializers import registry, serializer_for

CODE = """
import sys
from fractions import Fraction
from sluiceway.serializers import Serializer

class Ratio(Serializer):
    name = {name!r}
    def dumps(self, value): return str(value).encode()
    def loads(self, data): return Fraction(data.decode())
    def for_type(self, hint): return self if hint is Fraction else None

@hookimpl
def sluiceway_serializers():
    return [Offer("ratio", Ratio, requires={requires!r})]
"""


@pytest.fixture(autouse=True)
def no_other_serializers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FORMATS", {})


def code(name: str = "ratio", requires: tuple[str, ...] = ()) -> str:
    return CODE.format(name=name, requires=requires)


def test_a_plugins_serializer_keeps_the_types_that_it_knows(site: Any, manage: Any) -> None:
    site.install("ratios", code())
    manager = manage()
    assert serializer_for(Fraction).name == "pickle", "nobody has asked for services yet"
    manager.services()
    chosen = serializer_for(Fraction)
    assert chosen.name == "ratio"
    assert chosen.loads(chosen.dumps(Fraction(1, 3))) == Fraction(1, 3)
    assert serializer_for(complex).name == "pickle"
    manager.services()  # again is harmless


def test_one_that_lacks_its_library_is_left_out(site: Any, manage: Any) -> None:
    site.install("ratios", code(requires=("no_such_module",)))
    manage().services()
    assert serializer_for(Fraction).name == "pickle"


def test_one_of_another_name_than_its_offer_is_refused(site: Any, manage: Any) -> None:
    site.install("ratios", code(name="rational"))
    with pytest.raises(PluginError, match=r"serializer 'ratio' of .* calls itself 'rational'"):
        manage().services()


def test_a_name_that_is_taken_is_refused(site: Any, manage: Any) -> None:
    site.install("ratios", code(name="pickle").replace('Offer("ratio"', 'Offer("pickle"'))
    with pytest.raises(PluginError, match=r"'pickle' of .*: there is another serializer 'pickle'"):
        manage().services()


def test_plans_and_checks_know_them(site: Any, manage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sluiceway as sw

    def half(n: int) -> Fraction:
        return Fraction(n, 2)

    flow = sw.Pipeline("halves")
    flow.from_collection([1]).map(half).key_by(lambda ratio: ratio).map(str).print()
    codes = [finding.code for finding in flow.check()]
    assert "hash by lambda, pickled" in flow.explain()
    assert "pickled" in codes
    site.install("ratios", code())
    monkeypatch.setattr("sluiceway.plugins.default_manager", manage)
    assert "hash by lambda, by serializer ratio 1" in flow.explain()
    monkeypatch.setattr(registry, "_FORMATS", {})
    assert "pickled" not in [finding.code for finding in flow.check()]
