"""Text held to a JSON schema or a regular expression, through llguidance (the extra `grammar`).

The library follows the text token by token and gives, before each, the set of tokens that may
come; `decode/constrained.py` draws among them. JSON is written as `json.dumps` does, one space
after commas and colons, so that a text cannot wander off into blanks.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Characters of a JSON schema or a regular expression."""

JSON_STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


@dataclass(frozen=True)
class Grammar:
    """What a text must be.

    Attributes:
        kind: What `text` is written in.
        text: The JSON schema, or the regular expression that the whole text matches.
    """

    kind: Literal["json_schema", "regex"]
    text: str


class GrammarTokenizer:
    """A tokenizer as the library needs it; made once for a model, since that takes a while.

    Args:
        tokenizer_json: Contents of `tokenizer.json`.
        vocab_size: Logits of the model.
        eos_token_ids: Ids that end a text; they may come where the grammar may end.

    Raises:
        UsageError: llguidance is not installed.
        ManifestError: It cannot read the tokenizer.
    """

    def __init__(
        self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._library = _library()
        self._words = -(-vocab_size // 32)
        with foreign_errors(_unsuitable):
            self._tokenizer = self._library.LLTokenizer(
                tokenizer_json.decode(),
                n_vocab=vocab_size,
                eos_token=list(eos_token_ids) or None,
            )

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        """A constraint for one generation.

        Raises:
            UsageError: The grammar is not sound.
        """
        if len(grammar.text) > MAX_GRAMMAR:
            raise _unsound(grammar, f"more than {MAX_GRAMMAR} characters")
        matcher = self._library.LLMatcher
        with foreign_errors(partial(_unsound, grammar)):
            if grammar.kind == "json_schema":
                compiled = matcher.grammar_from_json_schema(grammar.text, overrides=JSON_STYLE)
            else:
                compiled = matcher.grammar_from_regex(grammar.text)
            fault = matcher.validate_grammar(compiled, self._tokenizer)
            if fault and not fault.startswith("WARNING"):
                raise _unsound(grammar, fault)
            made = GrammarConstraint(matcher(self._tokenizer, compiled), self._words)
            if not made.can_begin:  # schemas that refer to nothing but themselves
                raise _unsound(grammar, "no text satisfies it")
            return made


class GrammarConstraint:
    """A grammar at its place in one text; see `decode.rules.Constraint`.

    Args:
        matcher: The library's state.
        words: Words of a mask.
    """

    def __init__(self, matcher: Any, words: int) -> None:
        self._matcher = matcher
        self._words = words

    @property
    def can_begin(self) -> bool:
        """Whether any token may come first, or the text may be empty."""
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        return not self._matcher.is_error() and bool(words.any())

    @property
    def complete(self) -> bool:
        """Whether nothing more may come."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> U32:
        """Bit i mod 32 of word i / 32: whether token i may come next.

        Raises:
            GenerationError: The library has given up, for instance at a schema too large.
        """
        with foreign_errors(_lost):
            words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check()
        return words[: self._words]  # the library's may have one more

    def accept(self, token_id: int) -> None:
        """Take the token that came.

        Raises:
            GenerationError: It may not come.
        """
        with foreign_errors(_lost):
            self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _lost(self._matcher.get_error().splitlines()[0])


def _lost(said: str) -> GenerationError:
    return GenerationError("the text cannot be held to its grammar", found=said)


def _unsuitable(said: str) -> ManifestError:
    return ManifestError(
        "the tokenizer does not suit constrained text", where="tokenizer.json", found=said
    )


def _unsound(grammar: Grammar, fault: object) -> UsageError:
    named = {"json_schema": "the JSON schema", "regex": "the regular expression"}[grammar.kind]
    first = str(fault).strip().splitlines()[0]
    return UsageError(f"{named} cannot be followed", found=first)


def _library() -> Any:
    return import_extra(
        "llguidance", "grammar", "generation under a grammar, regular expression or JSON schema"
    )
