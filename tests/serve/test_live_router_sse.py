"""Test server-sent events of any worker: all line endings, any length, linear time and memory."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench_load.openai import EventSplitter, data_lines
from fairbench_serve.answers import StreamReader, Usage

ENDS = [b"\n", b"\r\n", b"\r"]
WORDS = ["one", "two", "three"]


def stream(end):
    events = [json.dumps({"choices": [{"text": word}]}).encode() for word in WORDS]
    events.append(json.dumps({"choices": [], "usage": {"completion_tokens": 3}}).encode())
    return b"".join(b"data: " + event + 2 * end for event in [*events, b"[DONE]"])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("hide", [False, True])
def test_every_kind_of_line_end_is_recognised(end, hide):
    """A stream with CRLF passes word by word, and its tokens are counted."""
    reader = StreamReader(hide_usage=hide)
    passed = [reader.feed(bytes([byte])) for byte in stream(end)]
    assert reader.usage() == Usage(None, 3, None)
    assert (b"completion_tokens" in b"".join(passed)) is not hide
    begun = stream(end).index(b"two")
    assert b"one" in b"".join(passed[:begun]), "the first word waited for the second"


@given(st.lists(st.sampled_from([b"\n", b"\r", b"data: x", b": y", b"z"]), max_size=30), st.data())
def test_no_division_of_a_stream_into_chunks_loses_or_moves_data(parts, data):
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    splitter = EventSplitter(2**26)
    passed = b""
    for start, end in pairwise([0, *cuts, len(whole)]):
        passed += b"".join(piece for piece, _ in splitter.feed(whole[start:end]))
    assert passed + splitter.rest() == whole


def test_an_endless_event_is_forwarded_in_pieces_and_takes_no_memory():
    splitter, passed, most = EventSplitter(1000), 0, 0
    for _ in range(500):
        passed += sum(len(piece) for piece, whole in splitter.feed(b"x" * 100) if not whole)
        most = max(most, len(splitter.rest()))
    assert most <= 1000
    assert passed + len(splitter.rest()) == 50_000
    [(tail, whole)] = splitter.feed(b"\n\n")
    assert (tail.endswith(b"x\n\n"), whole) == (True, False)
    assert splitter.feed(b"data: 1\n\n") == [(b"data: 1\n\n", True)]


def test_searched_bytes_are_not_searched_again():
    """32 MiB without a blank line are not searched from the start at each chunk."""

    class Counting(bytearray):
        searched = 0

        def rfind(self, sub, start=0):
            Counting.searched += len(self) - start
            return super().rfind(sub, start)

    splitter = EventSplitter(2**26)
    splitter._begun = Counting()
    for _ in range(256):
        splitter.feed(b"x" * 1024)
    # Each byte is searched once per kind of blank line, except for the few bytes before a chunk.
    assert Counting.searched <= 3 * 256 * (1024 + 4)


def test_the_data_lines_an_event_consists_of_all_its_data_lines():
    assert data_lines(b"event: e\r\ndata: 1\r\nid: 7\r\ndata:2\r\n\r\n") == [b"1", b"2"]
    assert data_lines(b": comment\n\n") == []
    assert data_lines(b"data:  [DONE] \r\n\r\n") == [b"[DONE]"]
    assert data_lines(b"\xef\xbb\xbfdata: 1\n\n") == [b"1"], "a mark of the byte order"


def test_nothing_is_passed_on_after_the_last_event():
    reader = StreamReader(hide_usage=False)
    late = b'data: {"error": {"message": "late"}}\n\ndata: [DONE]\n\n: bye\n\n'
    assert reader.feed(stream(b"\n") + late) == stream(b"\n")
    assert reader.feed(late) + reader.rest() == b""
    assert (reader.fault, reader.usage()) == (None, Usage(None, 3, None))


PARTS = [b"\n", b"\r", b"data: x", b"data:", b": y", b"z", b"data: 1\n\n", b"event: e\n"]


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join), max_size=4))
def test_the_data_of_a_stream_does_not_depend_on_its_chunks(chunks):
    """Whole events are returned without a search. Byte by byte, every event is searched."""

    def lines_of(pieces):
        splitter = EventSplitter(10_000)
        events = [event for piece in pieces for event, _ in splitter.feed(piece)]
        return [line for event in events for line in data_lines(event)]

    whole = b"".join(chunks)
    assert lines_of(chunks) == lines_of([whole[at : at + 1] for at in range(len(whole))])
