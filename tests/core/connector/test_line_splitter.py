"""Lines out of bytes, however they come."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.connector.line_splitter import LineBuffer, LineDecoder
from sluiceway.errors import ConfigurationError, ConnectorError

PLACE = "10.0.0.1:9999"


def split(
    data: bytes,
    cuts: list[int] | None = None,
    delimiter: str = "\n",
    encoding: str = "utf-8",
    errors: str = "strict",
    max_line_length: int = 1000,
) -> list[str]:
    decoder = LineDecoder(delimiter, encoding, errors, PLACE)  # type: ignore[arg-type]
    buffer = LineBuffer(decoder.delimiter, max_line_length, PLACE)
    bounds = [0, *sorted(min(c, len(data)) for c in cuts or []), len(data)]
    lines = []
    for start, end in itertools.pairwise(bounds):
        lines += decoder.decode(buffer.feed(data[start:end]))
    return lines + decoder.decode_tail(buffer.finish())


def model(data: bytes, delimiter: str) -> list[str]:
    parts = data.split(delimiter.encode())
    tail = parts.pop()
    if delimiter == "\n":
        parts = [p.removesuffix(b"\r") for p in parts]
    return [p.decode() for p in [*parts, *([tail] if tail else [])]]


@given(
    text=st.text(alphabet="ab|\n\r\u00e9\u20ac\U0001f600", max_size=60),
    delimiter=st.sampled_from(["\n", "\r\n", "|", "ab", "aa", "aba", "abab", "\u00e9", "\u00e9\u20ac", "||"]),
    cuts=st.lists(st.integers(0, 150), max_size=12),
)
def test_any_chunks_give_what_splitting_the_whole_gives(text: str, delimiter: str, cuts: list[int]) -> None:
    data = text.encode()
    assert split(data, cuts, delimiter) == model(data, delimiter)


@given(
    data=st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r", b"\xe2", b"\x82", b"\xac", b"\xff"]), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    errors=st.sampled_from(["replace", "ignore"]),
    encoding=st.sampled_from(["utf-8", "latin-1", "cp1252", "gbk"]),
)
def test_undecodable_bytes_stay_in_their_line(
    data: list[bytes], cuts: list[int], errors: str, encoding: str
) -> None:
    whole = b"".join(data)
    parts = whole.split(b"\n")
    lines = [p.removesuffix(b"\r").decode(encoding, errors) for p in parts[:-1]]
    tail = [parts[-1].decode(encoding, errors)] if parts[-1] else []
    assert split(whole, cuts, encoding=encoding, errors=errors) == lines + tail


def test_ignored_bytes_do_not_make_a_delimiter() -> None:
    assert split(b"xa\xffby", delimiter="ab", errors="ignore") == ["xaby"]


def test_skip_leaves_out_the_line_and_counts_it() -> None:
    decoder = LineDecoder("\n", "utf-8", "skip", PLACE)
    assert decoder.decode(b"good\nb\xffd\n\ngood\n") == ["good", "", "good"]
    assert (decoder.lines, decoder.skipped) == (4, 1)


def test_strict_says_where_what_and_what_to_do() -> None:
    with pytest.raises(ConnectorError) as caught:
        split(b"good\nb\xffd\n")
    assert str(caught.value) == (
        "10.0.0.1:9999, line 2: byte 0xff at position 1 is not utf-8 (invalid start byte), in b'b\\xffd'. "
        "Set encoding=, or say what is to become of such lines: errors='replace', 'ignore' or 'skip'"
    )


def test_one_carriage_return_before_a_line_feed_goes() -> None:
    assert split(b"a\r\nb\r\r\nc\rd\r") == ["a", "b\r", "c\rd\r"]
    assert split(b"a\r\nb", delimiter="\r") == ["a", "\nb"]
    assert split(b"a\r|b", delimiter="|") == ["a\r", "b"]
    assert split(b"a\r\nb\n", encoding="gbk") == ["a", "b"]


@pytest.mark.parametrize("cuts", [[], [5], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
@pytest.mark.parametrize("data", [b"ok\n0123456789a", b"ok\n0123456789a\nb\n", b"0123456789a\nok\n"])
def test_a_line_longer_than_allowed_is_an_error(data: bytes, cuts: list[int]) -> None:
    with pytest.raises(ConnectorError) as caught:
        split(data, cuts, max_line_length=10)
    assert str(caught.value).startswith(
        "10.0.0.1:9999: a line is longer than max_line_length=10 bytes. It begins with b'012345678"
    )
    assert str(caught.value).endswith("Is b'\\n' what ends a line here? If so, allow more.")


def test_a_line_as_long_as_allowed_is_none() -> None:
    for cuts in ([], [5], list(range(30))):
        assert split(b"0123456789\n0123456789\n0123456789", cuts, max_line_length=10) == ["0123456789"] * 3


def test_many_pieces_of_one_long_line_are_not_searched_again_and_again() -> None:
    buffer = LineBuffer(b"\n", 1 << 30, PLACE)
    piece = b"x" * 1000
    for _ in range(20_000):  # 20 MB; a search of all that is pending each time would be 200 GB
        assert buffer.feed(piece) == b""
    assert len(buffer.feed(b"\n")) == 20_000_001


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "klingon"}, "encoding='klingon' is not a text encoding that Python knows"),
        ({"encoding": "rot13"}, "encoding='rot13' is not a text encoding that Python knows"),
        ({"encoding": "utf-16"}, "lines that end with '\\n' cannot be told apart in bytes of encoding='utf-16'"),
        ({"encoding": "gbk", "delimiter": "|"}, "lines that end with '|' cannot be told apart in bytes of enco"),
        ({"delimiter": ""}, "delimiter= is empty; lines end with at least one character"),
        ({"encoding": "ascii", "delimiter": "\u00e9"}, "delimiter='\u00e9' cannot be written in encoding='ascii'"),
        ({"errors": "panic"}, "errors='panic' must be one of 'strict', 'replace', 'ignore', 'skip'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], message: str) -> None:
    given_ = {"delimiter": "\n", "encoding": "utf-8", "errors": "strict", "where": PLACE, **options}
    with pytest.raises(ConfigurationError) as caught:
        LineDecoder(**given_)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)
