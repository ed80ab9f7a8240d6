"""Constrain generated text to a JSON schema, regular expression or grammar with llguidance.

llguidance is installed by the extra `grammar`. It follows the text token by token and computes,
before each token, the set of tokens that may come next; `decode/chooser.py` samples from that
set. JSON is formatted as by `json.dumps`, with one space after commas and colons, so that a model
cannot go on generating whitespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError, ManifestError, UsageError
from rdrr_format.extras import import_extra
from rdrr_format.foreign import foreign_errors

U32 = npt.NDArray[np.uint32]

MAX_GRAMMAR = 1 << 20
"""Most characters of a JSON schema, a regular expression or a grammar."""

MAX_GBNF = 1 << 13
"""Most characters of a grammar in GBNF; the time to convert it grows with their square."""

JSON_STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


@dataclass(frozen=True)
class Grammar:
    """What the whole generated text must satisfy.

    Attributes:
        kind: The language of `text`.
        text: The JSON schema, the regular expression, or the grammar, which is in llguidance's
            dialect of Lark (its first rule is `start`) or llama.cpp's GBNF (`root`).
    """

    kind: Literal["json_schema", "regex", "grammar"]
    text: str


class GrammarTokenizer:
    """A tokenizer in the form that llguidance needs.

    Building it is slow, so it is built once for a model and shared by all constraints.

    Args:
        tokenizer_json: Contents of `tokenizer.json`.
        vocab_size: Number of logits that the model computes for a token.
        eos_token_ids: Ids that end a sequence; they are allowed wherever the grammar may end.

    Raises:
        UsageError: llguidance is not installed.
        ManifestError: llguidance cannot read the tokenizer.
    """

    def __init__(
        self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._library = _library()
        self._words = -(-vocab_size // 32)
        with foreign_errors(_unsupported_tokenizer):
            self._tokenizer = self._library.LLTokenizer(
                tokenizer_json.decode(),
                n_vocab=vocab_size,
                eos_token=list(eos_token_ids) or None,
            )

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        """Return a constraint for one generation.

        Raises:
            UsageError: The grammar is invalid, too long, or no text satisfies it.
        """
        if len(grammar.text) > MAX_GRAMMAR:
            raise _invalid_grammar(grammar, f"more than {MAX_GRAMMAR} characters")
        matcher = self._library.LLMatcher
        with foreign_errors(partial(_invalid_grammar, grammar)):
            compiled = _COMPILED[grammar.kind](matcher, grammar.text)
            fault = matcher.validate_grammar(compiled, self._tokenizer)
            if fault and not fault.startswith("WARNING"):
                raise _invalid_grammar(grammar, fault)
            constraint = GrammarConstraint(matcher(self._tokenizer, compiled), self._words)
            if not constraint.can_begin:  # for example a schema that only refers to itself
                raise _invalid_grammar(grammar, "no text satisfies it")
            return constraint


class GrammarConstraint:
    """The state of a grammar within one sequence; see `decode.rules.Constraint`.

    Args:
        matcher: The `LLMatcher` that follows the sequence.
        words: Number of 32-bit words of a token mask.
    """

    def __init__(self, matcher: Any, words: int) -> None:
        self._matcher = matcher
        self._words = words

    @property
    def can_begin(self) -> bool:
        """Whether at least one token, which may be an end of sequence, is allowed first."""
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        return not self._matcher.is_error() and bool(words.any())

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and allows no further token."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> U32:
        """Return the mask of the tokens that may come next, uint32 [words].

        Bit i mod 32 of word i // 32 is set if token i is allowed.

        Raises:
            GenerationError: llguidance has given up, for example because the schema is too large.
        """
        with foreign_errors(_constraint_failed):
            words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check()
        return words[: self._words]  # llguidance may append one more word

    def accept(self, token_id: int) -> None:
        """Advance the grammar by the token that was sampled.

        Raises:
            GenerationError: The token is not allowed here.
        """
        with foreign_errors(_constraint_failed):
            self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _constraint_failed(self._matcher.get_error().splitlines()[0])


def _from_grammar(matcher: Any, text: str) -> Any:
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    if not is_lark_syntax(text):
        if len(text) > MAX_GBNF:
            raise UsageError(
                "a grammar in GBNF is too long", expected=f"at most {MAX_GBNF:,} characters"
            )
        text = gbnf_to_lark(text)
    return matcher.grammar_from_lark(text)


_COMPILED: Mapping[str, Callable[[Any, str], Any]] = {
    "json_schema": lambda matcher, text: matcher.grammar_from_json_schema(
        text, overrides=JSON_STYLE
    ),
    "regex": lambda matcher, text: matcher.grammar_from_regex(text),
    "grammar": _from_grammar,
}
"""How llguidance reads each kind of grammar."""

_NAMES = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "grammar": "the text",
}


def _constraint_failed(message: str) -> GenerationError:
    return GenerationError("the grammar cannot be applied to the generated text", found=message)


def _unsupported_tokenizer(message: str) -> ManifestError:
    return ManifestError(
        "the tokenizer cannot be used with a grammar", where="tokenizer.json", found=message
    )


def _invalid_grammar(grammar: Grammar, fault: object) -> UsageError:
    first = str(fault).strip().splitlines()[0]
    return UsageError(f"{_NAMES[grammar.kind]} cannot be used as a grammar", found=first)


def _library() -> Any:
    return import_extra(
        "llguidance", "grammar", "generation under a grammar, regular expression or JSON schema"
    )
