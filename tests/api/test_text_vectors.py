"""Texts, streams and conversations give what the vectors of all languages say.

The browser runtime's tests read the same file (`web/test/text.test.ts`).
"""

from __future__ import annotations

import json

import pytest
from rdrr._web_text import unread_in_browsers
from rdrr_format.errors import ManifestError
from support import text_vectors, tokenizer_steps
from support.selected_tests import is_covering

VECTORS = text_vectors.read()


def test_the_vectors_have_six_hundred_texts_and_the_templates_that_are_rendered():
    assert len(VECTORS["texts"]) == text_vectors.TEXTS
    assert VECTORS["templates"] == text_vectors.TEMPLATES
    assert set(VECTORS["kinds"]) == set(text_vectors.KINDS)


def some(cases):
    """Return the strange texts, which come first, and of the others those of `make test`."""
    return [*cases[:40], *cases[40 :: 5 if is_covering() else 1]]


@pytest.mark.parametrize("name", text_vectors.KINDS)
def test_a_kind_of_tokenizer_gives_what_its_vectors_say(name):
    kind = VECTORS["kinds"][name]
    kind = kind | {part: some(kind[part]) for part in ("ids", "streams")}
    again = text_vectors.answered({"texts": some(VECTORS["texts"]), "kinds": {name: kind}})
    assert json.loads(json.dumps(again["kinds"][name])) == kind


def test_small_templates_give_the_texts_of_their_vectors():
    assert text_vectors.snippets() == VECTORS["snippets"]


def test_single_steps_of_tokenizers_give_what_their_vectors_say():
    assert tokenizer_steps.made() == tokenizer_steps.read()


REFUSED = json.loads(
    text_vectors.FILE.with_name("refused_tokenizers.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_tokenizer_that_browsers_would_read_differently_has_the_name_of_why(case):
    sound = next(iter(VECTORS["kinds"].values()))["tokenizer"]
    assert unread_in_browsers(sound) is None
    assert unread_in_browsers(sound | case["parts"]) == case["name"]


@pytest.mark.parametrize(
    "added", [7, {"a": 1}, [7], [{"normalized": True}], [{"normalized": True, "content": []}]]
)
def test_added_tokens_of_another_form_are_no_fault_of_the_program(added):
    sound = next(iter(VECTORS["kinds"].values()))["tokenizer"]
    assert unread_in_browsers(sound | {"added_tokens": added}) is None


def test_a_normalizer_that_cannot_be_read_is_an_error_of_the_tokenizer():
    sound = next(iter(VECTORS["kinds"].values()))["tokenizer"]
    added = [{"id": 900001, "content": "x", "normalized": True, "special": False}]
    parts = {"added_tokens": added, "normalizer": {"type": "Replace"}}
    with pytest.raises(ManifestError, match="cannot be read as a normalizer"):
        unread_in_browsers(sound | parts)


def test_browsers_read_the_tokenizers_of_the_vectors():
    kinds = VECTORS["kinds"].items()
    unread = {name: unread_in_browsers(kind["tokenizer"]) for name, kind in kinds}
    assert set(unread.values()) == {None}, unread
