"""Tokenizers that panic, expand a text without limit, never finish, or name missing ids."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import rdrr
from rdrr_format import bounded_tokenizer
from rdrr_format.bounded_tokenizer import MAX_TOKEN, BoundedTokenizer
from rdrr_format.errors import (
    ConversionError,
    GenerationError,
    ManifestError,
    UsageError,
)
from rdrr_format.foreign import foreign_errors, is_panic
from rdrr_format.tokenizer_bounds import MAX_ADDED, MAX_TEXT
from rdrr_runtime.text.tokenizer import TextCodec
from support.commands import rdrr as run
from support.manifests import VOCAB, write_package
from support.safetensor_files import llama_tensors, write_llama

LETTERS = {chr(97 + number): number for number in range(26)}


def tokenizer(**parts: Any) -> bytes:
    """Return the JSON of a tokenizer of single letters, with some parts replaced."""
    model = {"type": "BPE", "vocab": LETTERS, "merges": []} | parts.pop("model", {})
    return json.dumps({"version": "1.0", "model": model, **parts}).encode()


def split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def normalizers(*steps: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def added(token_id: object, special: object = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": "<x>", "special": special, **flags}


def template(single: list[Any], ids: int = 1) -> dict[str, Any]:
    pair = [{"Sequence": {"id": sequence, "type_id": 0}} for sequence in "AB"]
    tokens = {"<s>": {"id": "<s>", "ids": [0] * ids, "tokens": ["a"] * ids}}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BEGIN = {"SpecialToken": {"id": "<s>", "type_id": 0}}
GROWING = replace("a" * 1000, String="a")
PANICS = split("(a+)+(?=b)$")
SLOW = split("(?:a*a*a*)(?:x|y)")

SOUND = {
    "no parts": {},
    "a pattern": {"pre_tokenizer": split(r"\p{L}+| ?\S")},
    "Llama's normalizer": {
        "normalizer": normalizers({"type": "Prepend", "prepend": "▁"}, replace("▁", String=" "))
    },
    "T5's normalizer": {"normalizer": normalizers({"type": "NFKC"}, replace("▁", Regex=" {2,}"))},
    "a decoder": {"decoder": {"type": "Sequence", "decoders": [replace(" ", String="▁")]}},
    "a template": {"post_processor": template([BEGIN, TEXT])},
    "an added token": {"added_tokens": [added(26)]},
}

REFUSED = {
    "three replacements": ({"normalizer": normalizers(*[GROWING] * 3)}, "too long"),
    "a replacement of the empty match": ({"normalizer": replace("a" * 100, Regex="")}, "too long"),
    "a decoder that grows": ({"decoder": GROWING}, "too long"),
    "a decoder with a pattern": ({"decoder": replace("a", Regex="(a+)+")}, "regular expression"),
    "too many steps": ({"normalizer": normalizers(*[{"type": "NFC"}] * 300)}, "too many steps"),
    "a text that is repeated": ({"post_processor": template([TEXT] * 2)}, "repeats"),
    "too many special tokens": (
        {"post_processor": template([BEGIN, TEXT], MAX_ADDED + 1)},
        "too many ids",
    ),
    "a special flag of -1": ({"added_tokens": [added(26, -1)]}, "cannot be read"),
    "an id of -1": ({"added_tokens": [added(-1)]}, "cannot be read"),
    "an id of 2^32": ({"model": {"vocab": {"a": 1 << 32}}}, "cannot be read"),
    "an unknown model": ({"model": {"type": "magic"}}, "cannot be read"),
    "an invalid pattern": ({"pre_tokenizer": split("(")}, "cannot be read"),
    "a merge of unknown tokens": ({"model": {"merges": ["b Z"]}}, "cannot be read"),
}


@pytest.fixture
def package(tmp_path: Path, rng) -> Path:
    write_package(tmp_path / "package", rng)
    return tmp_path / "package"


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_tokenizer_is_read_and_valid(package, name):
    bounded = BoundedTokenizer(tokenizer(**SOUND[name]))
    assert bounded.decode(bounded.encode("abc", special=False)).replace(" ", "") == "abc"
    (package / "tokenizer.json").write_bytes(tokenizer(**SOUND[name]))
    assert rdrr.validate(package, deep=True).ok()


@pytest.mark.parametrize("name", REFUSED)
def test_whatever_loading_refuses_fails_deep_validation(package, name):
    parts, words = REFUSED[name]
    (package / "tokenizer.json").write_bytes(tokenizer(**parts))
    with pytest.raises(ManifestError, match=words):
        TextCodec(tokenizer(**parts))
    faults = rdrr.validate(package, deep=True).errors
    assert [fault.rule for fault in faults] == ["tokenizer-content"]
    assert words in faults[0].message
    assert rdrr.validate(package).ok()


def test_a_panic_becomes_an_rdrr_error():
    sound = TextCodec(tokenizer(pre_tokenizer=split("(a+)+")))
    panicking = TextCodec(tokenizer(pre_tokenizer=PANICS))
    assert sound.encode("a" * 40) == [0] * 40
    for encode in (panicking.encode, panicking.encode_as_is):
        with pytest.raises(GenerationError, match=r"the tokenizer fails.*panicked"):
            encode("a" * 40)


def test_a_tokenizer_that_panics_on_a_validation_text_fails_validation(package):
    (package / "tokenizer.json").write_bytes(tokenizer(pre_tokenizer=PANICS))
    done = run("validate", package, "--deep")
    assert done.code == 1
    assert "panicked" in done.out + done.err
    assert "Traceback" not in done.err


def test_panics_are_the_only_base_exceptions_that_are_caught():
    class PanicException(BaseException):
        pass

    fake = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    assert is_panic(fake("x"))
    for error in (KeyboardInterrupt(), SystemExit(), PanicException()):
        assert not is_panic(error)
        with pytest.raises(type(error)), foreign_errors(UsageError):
            raise error
    for found in (fake("x"), ValueError("x"), Exception("x")):
        with pytest.raises(UsageError, match="x"), foreign_errors(UsageError):
            raise found


def test_a_tokenizer_that_takes_too_long_is_abandoned(monkeypatch):
    slow = TextCodec(tokenizer(pre_tokenizer=SLOW))
    assert slow.encode("aaax") == [0, 0, 0, 23]
    monkeypatch.setattr(bounded_tokenizer, "SECONDS", 0.2)
    with pytest.raises(GenerationError, match="takes too long"):
        slow.encode("a" * 250 + "dx")
    assert any(thread.name == "rdrr-tokenizer" for thread in threading.enumerate())


@pytest.mark.thorough
def test_the_length_of_a_text_is_bounded_and_less_if_the_tokenizer_expands_it():
    plain = BoundedTokenizer(tokenizer(model={"vocab": {"b": 0}}))
    assert plain.encode("a" * MAX_TEXT) == []
    with pytest.raises(UsageError, match="too long"):
        plain.encode("a" * (MAX_TEXT + 1))
    with pytest.raises(UsageError, match="too long"):
        plain.encode("é" * (MAX_TEXT // 2 + 1))
    grown = BoundedTokenizer(tokenizer(normalizer=replace("a" * 64, String="a")))
    assert len(grown.encode("a" * 100)) == 6400
    with pytest.raises(UsageError, match="too long"):
        grown.encode("a" * (MAX_TEXT // 8))


def test_a_value_that_is_not_a_string_is_refused():
    codec = TextCodec(tokenizer())
    for wrong in (b"abc", 5, None, ["a"], "\ud800"):
        with pytest.raises(UsageError, match=r"not a text|not in UTF-8"):
            codec.encode(wrong)


@pytest.mark.parametrize("wrong", [-1, 1 << 32, 1 << 63, 1.5, "a", None, True, [0]])
def test_a_value_that_is_not_a_token_id_is_refused(wrong):
    codec = TextCodec(tokenizer())
    assert codec.decode([0, 1, 25]).replace(" ", "") == "abz"
    assert codec.stream().feed(1) == "b"
    with pytest.raises(UsageError, match="not a token id"):
        codec.decode([0, wrong])
    with pytest.raises(UsageError, match="not a token id"):
        codec.stream().feed(wrong)


def test_ids_without_a_token_decode_to_nothing():
    assert TextCodec(tokenizer()).decode([0, 26, 1 << 31]) == "a"


def test_a_token_has_a_bounded_length():
    vocab = {"a" * MAX_TOKEN: 0, "b" * (MAX_TOKEN + 1): 1}
    codec = TextCodec(tokenizer(model={"vocab": vocab}))
    assert len(codec.decode([0])) == MAX_TOKEN
    assert len(codec.stream().feed(0)) == MAX_TOKEN
    for decode in (lambda: codec.decode([1]), lambda: codec.stream().feed(1)):
        with pytest.raises(GenerationError, match="a token is too long"):
            decode()
    with pytest.raises(UsageError, match="the text would be too long"):
        codec.decode([0] * (MAX_TEXT // MAX_TOKEN + 1))


def test_a_text_is_neither_padded_nor_truncated():
    padding = {
        "strategy": {"Fixed": 10**12},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    }
    cut = {"max_length": 3, "stride": 5, "strategy": "LongestFirst", "direction": "Right"}
    codec = TextCodec(tokenizer(padding=padding, truncation=cut))
    assert len(codec.encode("abcdef")) == 6


@pytest.mark.parametrize(
    ("vocab", "tokens", "severities"),
    [
        ({"a": VOCAB - 1}, [], []),
        ({"a": VOCAB}, [], ["error"]),
        ({"a": (1 << 32) - 1}, [], ["error"]),
        ({f"t{number}": number for number in range(VOCAB)}, [added(VOCAB)], ["warning"]),
        ({f"t{number}": number for number in range(VOCAB - 1)}, [added(VOCAB - 1)], []),
    ],
)
def test_token_ids_must_be_rows_of_the_embedding(package, vocab, tokens, severities):
    content = tokenizer(model={"vocab": vocab}, added_tokens=tokens)
    (package / "tokenizer.json").write_bytes(content)
    faults = rdrr.validate(package, deep=True).faults
    content_faults = [fault for fault in faults if fault.rule == "tokenizer-content"]
    assert [one.severity for one in content_faults] == severities


@pytest.mark.parametrize("name", ["three replacements", "a special flag of -1"])
def test_a_checkpoint_with_such_a_tokenizer_is_not_converted(tmp_path, rng, name):
    source = write_llama(tmp_path / "source", llama_tensors(rng))
    rdrr.convert(source, tmp_path / "control")
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    (source / "tokenizer.json").write_text(json.dumps(content | REFUSED[name][0]), encoding="utf-8")
    for dry_run in (True, False):
        with pytest.raises(ConversionError, match=REFUSED[name][1]):
            rdrr.convert(source, tmp_path / "out", dry_run=dry_run)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_with_too_many_values_is_not_read():
    text = b'{"model": ' + b"[" * 100 + b"]" * 100 + b"}"
    with pytest.raises(ManifestError, match="nested too deeply"):
        TextCodec(text)
    many = b'{"x": [' + b"0," * (1 << 22) + b"0]}"
    with pytest.raises(ManifestError, match="too many values"):
        TextCodec(many)
