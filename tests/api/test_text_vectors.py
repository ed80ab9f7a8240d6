"""Texts, streams and conversations give what the vectors of all languages say.

The browser runtime's tests read the same file (`web/test/text.test.ts`).
"""

from __future__ import annotations

import json

import pytest
from support import text_vectors

VECTORS = text_vectors.read()


def test_the_vectors_have_six_hundred_texts_and_the_templates_that_are_rendered():
    assert len(VECTORS["texts"]) == text_vectors.TEXTS
    assert VECTORS["templates"] == text_vectors.TEMPLATES
    assert set(VECTORS["kinds"]) == set(text_vectors.KINDS)


@pytest.mark.parametrize("name", text_vectors.KINDS)
def test_a_kind_of_tokenizer_gives_what_its_vectors_say(name):
    kind = VECTORS["kinds"][name]
    again = text_vectors.answered({"texts": VECTORS["texts"], "kinds": {name: kind}})
    assert json.loads(json.dumps(again["kinds"][name])) == kind
