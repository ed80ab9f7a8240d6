from __future__ import annotations

import itertools

import pytest
from rdrr._generation import StopFilter


def _feed(text: str, cuts: list[int], stop: list[str]) -> tuple[str, StopFilter]:
    keep = StopFilter(stop)
    edges = [0, *sorted(cuts), len(text)]
    out = ""
    for start, end in itertools.pairwise(edges):
        out += keep.feed(text[start:end])
        if keep.found is not None:
            return out, keep
    return out + keep.rest(), keep


def test_text_ends_before_a_stop_string_wherever_pieces_end(rng):
    text, stop = "to be or not to be, that is the question", "not to"
    for _ in range(50):
        cuts = rng.integers(0, len(text), size=rng.integers(0, 12)).tolist()
        out, keep = _feed(text, cuts, [stop])
        assert out == "to be or "
        assert keep.found == stop


def test_text_without_a_stop_string_comes_out_whole(rng):
    text = "aab" * 20
    for _ in range(50):
        cuts = rng.integers(0, len(text), size=8).tolist()
        out, keep = _feed(text, cuts, ["aaa", "baab?", ""])
        assert out == text
        assert keep.found is None


def test_the_stop_string_that_comes_first_wins():
    out, keep = _feed("one two three", [], ["three", "two"])
    assert (out, keep.found) == ("one ", "two")


@pytest.mark.parametrize(("piece", "shown"), [("so sto", "so "), ("so", "so")])
def test_only_what_may_begin_a_stop_string_is_held_back(piece, shown):
    assert StopFilter(["stop"]).feed(piece) == shown
