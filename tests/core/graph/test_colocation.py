"""Steps that rely on sharing slots say so, and are refused where they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import GraphError
from sluiceway.graph import explain


def error(program: Any) -> str:
    with pytest.raises(GraphError) as caught:
        program.graph()
    return str(caught.value)


def test_a_group_is_shown_in_plans(program: Any) -> None:
    source = program.source(co_location_group="pair")
    program.sink(program.map(program.by("rebalance", source), co_location_group="pair"))
    graph = program.graph(3)
    assert [n.co_location_group for n in graph.nodes] == ["pair", "pair", None]
    assert explain(graph, "text").count("co-location group 'pair'") == 2


def test_a_group_does_not_change_uids(new_program: Any) -> None:
    uids = []
    for group in (None, "pair"):
        program = new_program()
        program.sink(program.source(co_location_group=group))
        uids.append([n.uid for n in program.graph().nodes])
    assert uids[0] == uids[1]


def test_its_steps_need_the_same_parallelism(program: Any) -> None:
    source = program.source(co_location_group="pair", name="numbers", parallelism=2)
    body = program.map(program.by("rebalance", source), co_location_group="pair", name="next", parallelism=3)
    program.sink(body)
    assert (
        "'numbers' and 'next' are in co-location group 'pair', but have parallelism 2 and 3: subtasks of the same"
        " index are to share a slot, so give both the same parallelism"
    ) in error(program)


def test_its_steps_need_one_slot_sharing_group(program: Any) -> None:
    source = program.source(co_location_group="pair", name="numbers", slot_sharing_group="io")
    program.sink(program.map(source, co_location_group="pair", name="next", slot_sharing_group="default"))
    assert (
        "'numbers' and 'next' are in co-location group 'pair', but in slot-sharing groups 'io' and 'default',"
        " which never share a slot: put both into one slot-sharing group"
    ) in error(program)


def test_steps_of_different_groups_have_nothing_to_do_with_each_other(program: Any) -> None:
    source = program.source(co_location_group="a", parallelism=2)
    program.sink(program.map(program.by("rebalance", source), co_location_group="b", parallelism=3))
    assert program.graph()
