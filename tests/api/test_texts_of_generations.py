"""The text of a generation is that of all its ids decoded at once, whichever way it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import rdrr
from support import tiny_tokenizers as tiny
from support.commands import rdrr as run
from support.scripted_models import write_scripted
from tokenizers import Tokenizer

UNKNOWN, BEGIN, END, MARK = range(4)
WORDS = ("user", "hello")


@contextmanager
def model(folder, tokenizer, ids, end=END) -> Iterator[rdrr.Model]:
    source = write_scripted(folder / "source", tokenizer, ids, end=end)
    rdrr.convert(source, folder / "package", quantize="f32")
    with rdrr.load(folder / "package", backend="cpu") as loaded:
        yield loaded


def byte(value: int) -> str:
    return f"<0x{value:02X}>"


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        pytest.param(["a", "▁an", "ab"], " anab", id="a first space"),
        pytest.param(["a", byte(10), byte(255), "ab"], "��ab", id="bytes that are not UTF-8"),
        pytest.param(["a", byte(10), byte(0xC3), byte(0xB1), "ab"], "\nñab", id="bytes in UTF-8"),
        pytest.param(["a", "ab", byte(0xE2), byte(0x82)], "ab��", id="an incomplete end"),
        pytest.param([byte(0xC3), byte(0xB1), "ab"], "ñab", id="an incomplete prompt"),
    ],
)
def test_the_text_of_all_ids_comes_from_every_way_to_generate(tmp_path, tokens, text):
    tokenizer = tiny.sentencepiece()
    ids = [tokenizer["model"]["vocab"][token] for token in tokens]
    prompt, count = ids[:1], len(ids)
    with model(tmp_path, tokenizer, ids) as loaded:
        generation = loaded.generate(prompt, max_tokens=count)
        assert (generation.read(), generation.token_ids) == (text, [*ids[1:], END])
        assert loaded.generate_batch([prompt], max_tokens=count)[0].text == text
        session = loaded.session(prompt)
        assert session.generate(max_tokens=count).read() == text
        assert session.text == Tokenizer.from_buffer(tiny.content(tokenizer)).decode(ids)


def test_spaces_that_the_settings_remove_come_in_no_way_to_generate(tmp_path):
    tokenizer = tiny.text_words("we do n't . not", tiny.WORD_PIECE)
    vocab = tokenizer["model"]["vocab"]
    prompt, *ids = (vocab[token] for token in ("we", "do", "n't", ".", "not"))
    settings = {"clean_up_tokenization_spaces": True}
    files = {"end": END, "tokenizer_config": settings}
    source = write_scripted(tmp_path / "source", tokenizer, [prompt, *ids], **files)
    rdrr.convert(source, tmp_path / "package", quantize="f32")
    with rdrr.load(tmp_path / "package", backend="cpu") as loaded:
        pieces = list(loaded.generate([prompt], max_tokens=9))
        assert "".join(pieces) == " don't. not"
        assert len(pieces) > 1, "text comes before the end"
        assert loaded.generate_batch([[prompt]], max_tokens=9)[0].text == " don't. not"
        session = loaded.session([prompt])
        assert session.generate(max_tokens=9, stop=". n").read() == " don't"
        assert session.text == "we don't. not"


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_text_that_is_appended_follows_without_a_space(tmp_path, scheme):
    with model(tmp_path, tiny.sentencepiece(scheme, strip=scheme != "never"), [5, 6]) as loaded:
        session = loaded.session("a")
        session.append("b")
        session.append(" ab")
        assert session.text == "ab ab"


@pytest.mark.parametrize(
    ("stop", "count", "text"),
    [
        ("<|end|>", 2, "hello"),
        ("\n<|end|>", 4, "hello"),
        ("<|end|>user", 5, "hello\n"),
        ("hello", 1, ""),
        ("<unk>", 6, "hello\nuser"),
    ],
)
def test_a_stop_string_may_contain_special_tokens(tmp_path, stop, count, text):
    tokenizer = tiny.byte_level(WORDS)
    vocab = tokenizer["model"]["vocab"]
    # The mark comes twice, so the second time it is a token of the same name with another id.
    tokenizer["added_tokens"].append(tiny.added("<|second|>", len(vocab)))
    ids = [vocab["a"], vocab["hello"], MARK, vocab["Ċ"], len(vocab), vocab["user"]]
    second = stop.replace("\n<|end|>", "\n<|second|>").replace("<|end|>user", "<|second|>user")
    with model(tmp_path, tokenizer, ids) as loaded:
        generation = loaded.generate(ids[:1], max_tokens=10, stop=second)
        assert (generation.read(), len(generation.token_ids)) == (text, count)
        assert generation.stopped_by == (second if second != "<unk>" else None)


def test_a_stop_string_ends_a_text_while_its_bytes_could_still_change(tmp_path):
    tokenizer = tiny.sentencepiece()
    vocab = tokenizer["model"]["vocab"]
    ids = [vocab[token] for token in ("a", "ab", byte(10), "<|end|>", "▁an")]
    with model(tmp_path, tokenizer, ids) as loaded:
        for stop, count in (("\n", 2), ("\n<|end|>", 3)):
            generation = loaded.generate(ids[:1], max_tokens=10, stop=stop)
            assert (generation.read(), len(generation.token_ids)) == ("ab", count)


@pytest.mark.parametrize(
    ("stated", "ends"), [([END, 6, 8], (6, 8)), (8, (8,)), (None, ())], ids=["list", "id", "none"]
)
def test_a_text_ends_at_every_end_token_of_the_generation_config(tmp_path, stated, ends):
    ids = [5, 6, 7, 8, 9]
    files = {} if stated is None else {"generation_config": {"eos_token_id": stated}}
    source = write_scripted(tmp_path / "source", tiny.byte_level(), ids, end=END, **files)
    rdrr.convert(source, tmp_path / "package", quantize="f32")
    following = [*ids[1:], END]
    # The end token of config.json counts where generation_config.json states none; it repeats.
    whole = [*following, *([END] * 2 if stated == 8 else [])]
    with rdrr.load(tmp_path / "package", backend="cpu") as loaded:
        for at, first in enumerate(ids):
            last = next((end for end in following[at:] if end in ends), None)
            right = whole[at : following.index(last) + 1] if last else whole[at:]
            finish = "stop" if last or stated != 8 else "length"
            limit = len(right) if finish == "length" else 9
            generation = loaded.generate([first], max_tokens=limit)
            "".join(generation)
            assert (generation.token_ids, generation.stats.finish) == (right, finish)
            (completion,) = loaded.generate_batch([[first]], max_tokens=limit)
            assert (completion.token_ids, completion.finish) == (right, finish)
            session = loaded.session([first])
            session.generate(max_tokens=limit).read()
            assert session.ids == [first, *right]
    words = ("generate", tmp_path / "package", "--backend", "cpu", "--prompt-ids", 5, "-n", 9)
    said = run(*words, "--json").json()
    assert said["token_ids"] == (following[: following.index(ends[0]) + 1] if ends else whole)
