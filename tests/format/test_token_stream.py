"""A stream's texts are together the text of all its ids decoded at once, whatever the ids."""

from __future__ import annotations

import pytest
from rdrr_format.bounded_tokenizer import BoundedTokenizer
from rdrr_format.token_stream import Segment, visible
from support import tiny_tokenizers as tiny
from tokenizers import Tokenizer

KINDS = {
    "byte-level": tiny.byte_level(),
    "SentencePiece": tiny.sentencepiece(),
    "SentencePiece without a prefix": tiny.sentencepiece("never", strip=False),
    "SentencePiece that strips two": tiny.sentencepiece()
    | {"decoder": tiny.sequence([*tiny.FALLBACK, tiny.STRIP | {"start": 2}])},
    "Unigram": tiny.unigram(),
    "Unigram with bytes": tiny.unigram(
        tiny.sequence([{"type": "ByteFallback"}, tiny.metaspace("always")])
    ),
    "WordPiece": tiny.words({"type": "WordPiece", "prefix": "##", "cleanup": True}),
    "no decoder": tiny.words(None),
    "a decoder of the last token": tiny.words({"type": "BPEDecoder", "suffix": "</w>"}),
    "a decoder of pairs": tiny.words(
        {"type": "CTC", "pad_token": "|", "word_delimiter_token": "n", "cleanup": False}
    ),
    "a pattern across tokens": tiny.words(
        tiny.sequence(
            [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "an"}, "content": "?"}]
        )
    ),
}

CLEANED = [
    {"type": "Fuse"},
    *(
        {"type": "Replace", "pattern": {"String": pattern}, "content": content}
        for pattern, content in ((" .", "."), (" n ", "n"), (" 'm", "'m"), ("an", "?"))
    ),
]
KINDS |= {
    "Unigram whose spaces are cleaned up": tiny.unigram(
        tiny.sequence([tiny.metaspace("always"), *CLEANED])
    ),
    "words whose spaces are cleaned up": tiny.words(
        tiny.sequence([{"type": "WordPiece", "prefix": "##", "cleanup": False}, *CLEANED])
    ),
}


def streamed(tokenizer: BoundedTokenizer, prompt: list[int], ids: list[int]) -> str:
    stream = tokenizer.stream(prompt)
    return "".join(map(stream.feed, ids)) + visible(stream.rest())


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_gives_the_text_of_all_ids_decoded_at_once(kind, rng):
    content = tiny.content(KINDS[kind])
    bounded, library = BoundedTokenizer(content), Tokenizer.from_buffer(content)
    size = library.get_vocab_size()
    # Few different ids: prefixes, runs of bytes and special tokens meet often.
    for few in (3, 6, size):
        for _ in range(60):
            chosen = rng.choice(size, size=few)
            ids = rng.choice(chosen, size=rng.integers(0, 12)).tolist()
            prompt = rng.choice(chosen, size=rng.integers(0, 4)).tolist()
            whole, before = library.decode(prompt + ids), library.decode(prompt)
            assert streamed(bounded, [], ids) == library.decode(ids)
            # Bytes of a character that the prompt has begun may be one sign with those that follow.
            if whole.startswith(before) and not before.endswith("\ufffd"):
                assert streamed(bounded, prompt, ids) == whole.removeprefix(before)


@pytest.mark.parametrize("kind", ["byte-level", "SentencePiece", "Unigram with bytes"])
def test_a_stream_gives_any_text_back_that_was_encoded(kind, rng):
    content = tiny.content(KINDS[kind])
    bounded, library = BoundedTokenizer(content), Tokenizer.from_buffer(content)
    for _ in range(60):
        text = "".join(rng.choice(list("ab n.ñ語😀\n�é<|end|>"), size=rng.integers(0, 20)))
        ids = bounded.encode(text)
        assert streamed(bounded, [], ids) == library.decode(ids)


def test_text_comes_as_soon_as_no_later_token_can_change_it():
    tokenizer = BoundedTokenizer(tiny.content(tiny.sentencepiece()))
    line, a = tokenizer.encode("\n")[-1], tokenizer.encode("a")[0]
    stream = tokenizer.stream()
    assert [stream.feed(token_id) for token_id in (a, a, line, a)] == ["a", " a", "", "\n a"]


def test_edits_of_a_text_hold_back_only_what_they_may_change():
    tokenizer = BoundedTokenizer(tiny.content(KINDS["words whose spaces are cleaned up"]))
    do, stop, a = (tokenizer.encode(word)[0] for word in ("do", ".", "a"))
    stream = tokenizer.stream([do])
    assert [stream.feed(token_id) for token_id in (do, stop, do, a, a)] == [
        " do",
        "",
        ". do",
        "",
        "",
    ]
    assert visible(stream.rest()) == " a a"


def test_the_first_space_belongs_to_a_text_that_continues_another():
    tokenizer = BoundedTokenizer(tiny.content(tiny.sentencepiece()))
    ids = tokenizer.encode("a")
    assert streamed(tokenizer, ids, ids) == " a"
    assert streamed(tokenizer, [], ids) == "a"
    assert streamed(tokenizer, [1], ids) == "a", "a prompt without text"


def test_special_tokens_stand_where_they_arrived():
    tokenizer = BoundedTokenizer(tiny.content(tiny.sentencepiece()))
    line, a = tokenizer.encode("\n")[-1], tokenizer.encode("a")[0]
    stream = tokenizer.stream([a])
    segments = [part for token_id in (3, line, 3, a) for part in stream.segments(token_id)]
    end = Segment("<|end|>", special=True)
    assert segments == [end, Segment("\n"), end, Segment(" a")]
