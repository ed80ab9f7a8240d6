"""Unigram tokenizers of SentencePiece in GGUF files give the ids of the original ones."""

from __future__ import annotations

import json
import re

import pytest
from rdrr_converter.gguf import unigram
from rdrr_converter.gguf.tokenizer import tokenizer_files
from rdrr_format.errors import SourceError
from support.gguf_unigram import unigram_entries, unigram_of_pairs
from tokenizers import Tokenizer

TEXTS = (
    "the king said",
    "  two  spaces ",
    "caf\u00e9 \ufb01re",
    "\u4e16\u754c",
    "",
    "[PAD450]",
    "</s>",
)
ENCODER = {"general.architecture": "bert", "bert.attention.causal": False}


def texts(rng):
    alphabet = list("aeionthsr  .,'\u00e9\u0301\ufb01\u4e16<>[]P")
    random = ("".join(rng.choice(alphabet, 40)) for _ in range(40))
    # The same pieces in another order score alike up to rounding: o, oo and oo, o.
    return [*TEXTS, *(text for text in random if not re.search(r"([^ ])\1\1", text))]


def rebuilt(**changes):
    files, _, notes = tokenizer_files({**ENCODER, **unigram_entries(500), **changes}, "m.gguf")
    assert notes == ()
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def test_texts_and_pairs_have_the_ids_of_the_original(rng):
    ours, theirs = rebuilt(), Tokenizer.from_str(json.dumps(unigram_of_pairs()))
    some = texts(rng)
    for given in (*some, *zip(some, reversed(some), strict=True)):
        first, second = (
            tokenizer.encode(*given) if isinstance(given, tuple) else tokenizer.encode(given)
            for tokenizer in (ours, theirs)
        )
        assert first.ids == second.ids, given
        assert set(first.type_ids) == {0}


def test_another_table_of_characters_or_score_gives_other_ids():
    usual = [tokens.ids for tokens in rebuilt().encode_batch(TEXTS)]
    scores = unigram_entries(500)["tokenizer.ggml.scores"]
    for changes in (
        {"tokenizer.ggml.precompiled_charsmap": []},
        {"tokenizer.ggml.scores": [min(0.0, -16 - score) for score in scores]},
        {"tokenizer.ggml.remove_extra_whitespaces": False},
        {"tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.add_sep_token": False},
    ):
        assert [tokens.ids for tokens in rebuilt(**changes).encode_batch(TEXTS)] != usual


WORDS = {"type": "WhitespaceSplit"}
META = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({}, (True, True, True)),
        ({"pre_tokenizer": {**META, "prepend_scheme": "never"}}, (False, True, True)),
        ({"normalizer": None}, (True, False, True)),
        (
            {
                "normalizer": None,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [WORDS, META]},
            },
            (True, True, True),
        ),
        ({"normalizer": {"type": "NFKC"}}, (True, False, False)),
        ({"pre_tokenizer": {"type": "Punctuation"}}, (False, True, False)),
    ],
)
def test_a_file_states_what_it_can_of_the_steps(steps, expected):
    read = unigram.read_steps({**unigram_of_pairs(), **steps})
    assert (read.adds_prefix, read.removes_spaces, read.is_whole) == expected
    has_table = steps.get("normalizer", {}) == {}
    assert bool(read.charsmap) is has_table


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("scores", [-1.0] * 499, "500 finite numbers"),
        ("scores", [float("nan")] * 500, "500 finite numbers"),
        ("precompiled_charsmap", [256], "bytes"),
        ("precompiled_charsmap", "AAAA", "a list of int"),
    ],
)
def test_a_vocabulary_that_is_damaged_is_refused(key, value, expected):
    with pytest.raises(SourceError, match=f"tokenizer.ggml.{key}.*expected {expected}"):
        rebuilt(**{f"tokenizer.ggml.{key}": value})
    rebuilt()


def test_a_vocabulary_without_its_unknown_token_is_refused():
    lists = ("tokens", "scores", "token_type")
    entries = unigram_entries(500)
    short = {f"tokenizer.ggml.{key}": entries[f"tokenizer.ggml.{key}"][1:3] for key in lists}
    stated = {f"tokenizer.ggml.{name}_token_id": None for name in ("unknown", "eos", "seperator")}
    with pytest.raises(SourceError, match=r"expected the unknown token, 2, found 2"):
        rebuilt(**short, **stated)
    assert rebuilt(**stated).encode("\u4e16").ids[-1] == 0
