"""Grammar constraints with the tokenizer of the bundled checkpoint, without a model."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from rdrr_format.errors import ManifestError, UsageError
from rdrr_runtime.text.grammar import MAX_GBNF, Grammar, GrammarTokenizer
from support.commands import EXAMPLE
from tokenizers import Tokenizer

TOKENIZER = EXAMPLE / "tokenizer.json"
VOCAB, EOS = 8192, 2


@pytest.fixture(scope="module")
def grammars() -> GrammarTokenizer:
    return GrammarTokenizer(TOKENIZER.read_bytes(), VOCAB, [EOS])


def allowed(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


@pytest.mark.parametrize("vocab", [VOCAB, VOCAB + 1, VOCAB + 64])
def test_a_mask_has_a_bit_for_each_logit_and_no_further_word(vocab):
    grammar_tokenizer = GrammarTokenizer(TOKENIZER.read_bytes(), vocab, [EOS])
    mask = grammar_tokenizer.constraint(Grammar("regex", "x")).mask()
    assert len(mask) == -(-vocab // 32)
    assert allowed(mask).max() < VOCAB


def test_random_tokens_under_a_schema_form_json_that_satisfies_it(grammars, rng):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"const": 1}}},
        "required": ["n"],
        "additionalProperties": False,
    }
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    finished = 0
    for _ in range(20):
        constraint = grammars.constraint(Grammar("json_schema", json.dumps(schema)))
        ids: list[int] = []
        while not constraint.complete and len(ids) < 60:
            choice = int(rng.choice(allowed(constraint.mask())))
            if choice == EOS:
                break
            constraint.accept(choice)
            ids.append(choice)
        if constraint.complete:
            finished += 1
            value = json.loads(tokenizer.decode(ids))
            assert isinstance(value["n"], int)
            assert set(value.get("tags", [])) <= {1}
    assert finished > 5


def test_an_invalid_grammar_is_a_usage_error(grammars):
    for grammar in (Grammar("json_schema", '{"type": "strang"}'), Grammar("json_schema", "[1]"),
                    Grammar("regex", "(a"), Grammar("grammar", "start: a"),
                    Grammar("grammar", "root ::= a"), Grammar("grammar", "poem"),
                    Grammar("grammar", "root ::= " + "(" * 3000)):  # fmt: skip
        with pytest.raises(UsageError, match="cannot be used as a grammar"):
            grammars.constraint(grammar)


@pytest.mark.parametrize(
    "text",
    ['start: "a" b*\nb: "b" | "c" b', 'root ::= "a" b*  # in GBNF\nb ::= "b" | "c" b'],
    ids=["lark", "gbnf"],
)
def test_random_tokens_under_a_grammar_form_a_text_of_its_language(grammars, rng, text):
    constraint = grammars.constraint(Grammar("grammar", text))
    ids: list[int] = []
    while len(ids) < 40 and (choice := int(rng.choice(allowed(constraint.mask())))) != EOS:
        constraint.accept(choice)
        ids.append(choice)
    assert re.fullmatch("a[bc]*", Tokenizer.from_file(str(TOKENIZER)).decode(ids))


def test_a_grammar_that_takes_long_to_convert_is_refused(grammars):
    rules = 'root ::= "a"\n' + "".join(f'r{at} ::= "a"\n' for at in range(1000))
    assert len(rules) > MAX_GBNF
    with pytest.raises(UsageError, match="GBNF is too long"):
        grammars.constraint(Grammar("grammar", rules))


def test_a_tokenizer_that_llguidance_cannot_use_is_a_manifest_error():
    for content, vocab in ((b"{}", VOCAB), (TOKENIZER.read_bytes(), VOCAB - 1)):
        with pytest.raises(ManifestError, match=r"tokenizer\.json"):
            GrammarTokenizer(content, vocab, [EOS])
