from __future__ import annotations

import itertools

import pytest
from rdrr._generation import Generation, StopFilter
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.text.tokenizer import TextCodec
from support import tiny_tokenizers as tiny
from tokenizers import Tokenizer


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


KINDS = {
    "byte-level": tiny.byte_level(),
    "SentencePiece": tiny.sentencepiece(),
    "Unigram": tiny.unigram(),
}


def _generation(codec, prompt, ids, cuts, stop=()):
    """Return a generation whose ids come in runs that end at random places."""
    edges = [0, *sorted(cuts), len(ids)]
    runs = (ids[start:end] for start, end in itertools.pairwise(edges))
    return Generation(runs, codec, prompt_ids=prompt, stats=GenerationStats(), stop=stop)


@pytest.mark.parametrize("kind", KINDS)
def test_a_generation_adds_to_its_prompt_the_text_of_all_ids(kind, rng):
    content = tiny.content(KINDS[kind])
    codec, library = TextCodec(content), Tokenizer.from_buffer(content)
    for _ in range(60):
        chosen = rng.choice(library.get_vocab_size(), size=6)
        prompt, ids = rng.choice(chosen, size=3).tolist(), rng.choice(chosen, size=9).tolist()
        whole, before = library.decode(prompt + ids), library.decode(prompt)
        if not whole.startswith(before):
            continue  # bytes of the prompt are only now a character
        cuts = rng.integers(0, 9, size=3).tolist()
        text = _generation(codec, prompt, ids, cuts).read()
        assert text == codec.continuation(prompt, ids) == whole.removeprefix(before)
        held = _generation(codec, prompt, ids, cuts, stop=["no such text", whole + "!"])
        assert held.read() == text


def test_a_generation_ends_at_the_first_stop_string_of_all_its_text(rng):
    content = tiny.content(tiny.byte_level())
    codec, library = TextCodec(content), Tokenizer.from_buffer(content)
    letters = [*(library.token_to_id(token) for token in ("a", "b", "Ċ", "ab")), 1, 3]
    for _ in range(100):
        ids = rng.choice(letters, size=12).tolist()
        whole = library.decode(ids, skip_special_tokens=False)
        start, size = rng.integers(0, len(whole)), rng.integers(1, 12)
        stop = whole[start : start + size]
        texts = (library.decode(ids[:end], skip_special_tokens=False) for end in range(13))
        count, text = next((end, text) for end, text in enumerate(texts) if stop in text)
        shown = text[: text.index(stop)]
        for token in tiny.CONTROL:
            shown = shown.replace(token, "")
        generation = _generation(codec, [], ids, rng.integers(0, 12, size=3).tolist(), [stop])
        read = generation.read()
        if "<" not in text[: text.index(stop)].rpartition(">")[2]:  # no token is cut in two
            assert read == shown
        assert (len(generation.token_ids), generation.stopped_by) == (count, stop)
