"""Texts with half a surrogate pair, in JSON and in control messages."""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec

from sluiceway.runtime.messages.clients import Refused
from sluiceway.runtime.messages.payload import Payload
from sluiceway.runtime.messages.protocol import decode, encode
from sluiceway.runtime.messages.tasks import AssignSplits
from sluiceway.savepoint.json_text import as_json
from sluiceway.util.surrogates import json_bytes

HALF = "x\ud800é"
"""A text that UTF-8 cannot encode."""


class Told(msgspec.Struct):
    text: str
    more: dict[str, list[str]]
    data: bytes = b""


@dataclass
class Named:
    names: tuple[str, ...]


def test_json_has_an_escape_in_its_place() -> None:
    told = Told(HALF, {HALF: ["a", HALF]}, b"\xff")
    assert json.loads(json_bytes(told)) == {
        "text": "x\\ud800é",
        "more": {"x\\ud800é": ["a", "x\\ud800é"]},
        "data": "/w==",
    }
    assert json_bytes({"of": Named((HALF,))}) == rb'{"of":{"names":["x\\ud800' + "é".encode() + b'"]}}'
    assert msgspec.json.decode(json_bytes(Told("é", {}, b"\xff")), type=Told) == Told("é", {}, b"\xff")


def test_a_value_is_shown_as_json_that_can_be_printed() -> None:
    shown = as_json({"a": [HALF]})
    assert shown.encode() == rb'{"a": ["x\ud800' + "é".encode() + b'"]}'
    assert json.loads(shown) == {"a": [HALF]}


def test_a_message_is_sent_all_the_same() -> None:
    assert decode(encode(Refused(7, HALF))) == Refused(7, "x\\ud800é")


def test_payloads_stay_what_they_are() -> None:
    sent = AssignSplits(HALF, 1, "attempt", Payload([HALF]))
    received = decode(encode(sent))
    assert isinstance(received, AssignSplits)
    assert (received.job, received.splits.open()) == ("x\\ud800é", [HALF])
