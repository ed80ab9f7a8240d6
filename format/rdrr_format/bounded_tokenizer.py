"""The library `tokenizers`, called within bounds; this is the one module that calls it.

A `tokenizer.json` comes from a stranger. It is refused when it is read if its steps could make a
text grow too much (`rdrr_format.tokenizer_bounds`). Texts to encode and to decode have a maximum
size, and encoding has a time limit because the library's regular expressions backtrack. Whatever
the library raises, a panic included, becomes an error of `rdrr_format.errors`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

from rdrr_format.bounded_json import JsonBounds, check_bounds
from rdrr_format.errors import FormatError, GenerationError, ManifestError, RdrrError, UsageError
from rdrr_format.foreign import foreign_errors
from rdrr_format.token_stream import Segment, SegmentStream, split_edits, token_decoder, visible
from rdrr_format.tokenizer_bounds import (
    check_post_processor,
    check_text_size,
    decoder_growth,
    normalizer_growth,
)

JSON_BOUNDS = JsonBounds(size=64 << 20, values=1 << 22)
"""Limits of a `tokenizer.json`; the largest published ones reach half of them."""

MAX_TOKEN = 1 << 16
"""Largest number of characters of one token."""

MAX_ID = (1 << 32) - 1

SECONDS, BYTES_PER_SECOND = 30, 20_000
"""Time limit of encoding: `SECONDS`, plus 1 second for every `BYTES_PER_SECOND` bytes of text.

Encoding usually takes a hundredth of that.
"""

_NO_WORDS = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
_HINT = "use the tokenizer.json that the model was published with"


@dataclass(frozen=True)
class Encoded:
    """A text, or a pair of texts, as tokens.

    Attributes:
        ids: Token ids, with special tokens.
        types: Type of each token: 1 in the second text of a pair if the post-processor says so.
        is_truncated: Whether the end of a text was left out.
        spans: First character of each token in its text, and the one after its last.
        special: Whether each token was added by the post-processor.
    """

    ids: list[int]
    types: list[int]
    is_truncated: bool
    spans: list[tuple[int, int]]
    special: list[bool]


class BoundedTokenizer:
    """A tokenizer whose file was read and found to be within the bounds.

    Args:
        content: Content of a `tokenizer.json`.
        where: Name of the file, for error messages.
        limit: Most tokens of a text or pair, whose end is then left out; None for no limit.

    Attributes:
        special_tokens: The tokens that are not part of a text.
        normalizes: Whether an added token may be found in a text that does not hold its text.
        decoder_steps: The library's JSON description of the decoder without edits of whole texts;
            None where there is none.
        edits: These edits.

    Raises:
        ManifestError: The content is not a tokenizer, or goes beyond a bound.
    """

    def __init__(
        self, content: bytes, *, where: str = "tokenizer.json", limit: int | None = None
    ) -> None:
        # Even for batches of one text the library would start a thread pool, which takes 25 MiB.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer

        self._where = where
        try:
            check_bounds(content, JSON_BOUNDS)
            with foreign_errors(self._unreadable):
                self._tokenizer = Tokenizer.from_buffer(content)
                # The file may ask for padding and truncation, which would change texts silently.
                self._tokenizer.no_padding()
                self._tokenizer.no_truncation()
                if limit is not None:
                    self._tokenizer.enable_truncation(limit)
                normalizer = _description(self._tokenizer.normalizer)
                decoder = _description(self._tokenizer.decoder)
                post_processor = _description(self._tokenizer.post_processor)
                added = max(map(self._tokenizer.num_special_tokens_to_add, (False, True)))
                tokens = self._tokenizer.get_added_tokens_decoder().values()
            self.normalizes = bool(normalizer) and any(token.normalized for token in tokens)
            self.decoder_steps, self.edits = split_edits(decoder)
            self._decoder = self._tokenizer.decoder
            if self.edits:
                unedited = {"model": _NO_WORDS, "decoder": self.decoder_steps}
                self._decoder = Tokenizer.from_str(json.dumps(unedited)).decoder
            self.special_tokens = frozenset(token.content for token in tokens if token.special)
            self._encoding_growth = normalizer_growth(normalizer)
            self._decoding_growth = decoder_growth(decoder)
            check_post_processor(post_processor, added)
        except FormatError as error:
            raise ManifestError(
                error.message, where=where, expected=error.expected, found=error.found, hint=_HINT
            ) from error

    def encode(self, text: str, second: str | None = None, *, special: bool = True) -> list[int]:
        """Return the token ids of a text, or of a pair of texts.

        Args:
            text: The text.
            second: The second text of a pair; None for a single text.
            special: Whether the post-processor adds special tokens.

        Raises:
            UsageError: The text cannot be written in UTF-8, or is too long.
            GenerationError: The tokenizer fails on the text, or takes too long.
        """
        size = _utf8_size(text) + (0 if second is None else _utf8_size(second))
        check_text_size(size, self._encoding_growth, "the text is too long to be encoded")
        given = text if second is None else (text, second)
        return list(self._encode_in_time([given], special, size)[0].ids)

    def encode_all(self, texts: Sequence[str | tuple[str, str]]) -> list[Encoded]:
        """Return the tokens of texts, or of pairs of texts, with special tokens.

        Raises:
            UsageError: A text cannot be written in UTF-8, or is too long.
            GenerationError: The tokenizer fails on a text, or takes too long.
        """
        pairs = [(text,) if isinstance(text, str) else text for text in texts]
        sizes = [sum(map(_utf8_size, pair)) for pair in pairs]
        for size in sizes:
            check_text_size(size, self._encoding_growth, "the text is too long to be encoded")
        return [
            Encoded(
                list(encoding.ids),
                list(encoding.type_ids),
                bool(encoding.overflowing),
                list(encoding.offsets),
                [bool(mark) for mark in encoding.special_tokens_mask],
            )
            for encoding in (self._encode_in_time(texts, True, sum(sizes)) if texts else ())
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens.

        Raises:
            UsageError: A value is not a token id, or the text would be too long.
            GenerationError: The tokenizer fails on the ids.
        """
        checked = [checked_id(token_id) for token_id in ids]
        sizes = {token_id: len(self.token(token_id) or "") for token_id in set(checked)}
        size = sum(sizes[token_id] for token_id in checked)
        check_text_size(size, self._decoding_growth, "the text would be too long")
        with foreign_errors(self._failure):
            text: str = self._tokenizer.decode(checked)
        return text

    def stream(self, prompt: Sequence[int] = ()) -> BoundedStream:
        """Return a streaming decoder, which takes one token id at a time.

        Args:
            prompt: Ids that come before; their text is not returned.
        """
        return BoundedStream(self, prompt)

    def token(self, token_id: Any) -> str | None:
        """Return the token of an id; None if there is none.

        Raises:
            UsageError: The value is not a token id.
            GenerationError: The token is too long.
        """
        token: str | None = self._tokenizer.id_to_token(checked_id(token_id))
        if token is not None and len(token) > MAX_TOKEN:
            raise self._too_long(token_id, len(token))
        return token

    def is_special(self, token_id: int) -> bool:
        """Return whether an id is that of a special token."""
        return self._tokenizer.id_to_token(token_id) in self.special_tokens

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, of which none is special, without edits.

        Raises:
            UsageError: The text would be too long.
            GenerationError: The tokenizer fails on the tokens.
        """
        if self._decoder is None:
            return " ".join(tokens)
        check_text_size(sum(map(len, tokens)), self._decoding_growth, "the text would be too long")
        with foreign_errors(self._failure):
            text: str = self._decoder.decode(list(tokens))
        return text

    def added_tokens(self) -> dict[str, bool]:
        """Return the added tokens, with whether they are special."""
        tokens = self._tokenizer.get_added_tokens_decoder().values()
        return {str(token.content): bool(token.special) for token in tokens}

    def vocabulary(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the ids by token: of the model's vocabulary, and of the added tokens."""
        with foreign_errors(self._unreadable):
            vocabulary: Mapping[str, int] = self._tokenizer.get_vocab(with_added_tokens=False)
            added = {
                str(token.content): token_id
                for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            }
        return vocabulary, added

    def _too_long(self, token_id: Any, size: int) -> GenerationError:
        return GenerationError(
            "a token is too long",
            where=self._where,
            expected=f"at most {MAX_TOKEN} characters",
            found=f"{size}, of id {token_id}",
        )

    def _encode_in_time(
        self, texts: Sequence[str | tuple[str, str]], special: bool, size: int
    ) -> Sequence[Any]:
        """Encode texts in a thread, which is abandoned when it exceeds the time limit.

        `encode_batch` is the only encoding call of the library that releases the GIL.

        Args:
            texts: Texts, or pairs of texts.
            special: Whether the post-processor adds special tokens.
            size: Bytes of all texts.
        """
        seconds = SECONDS + size / BYTES_PER_SECOND
        results: list[Sequence[Any]] = []
        errors: list[RdrrError] = []

        def run() -> None:
            try:
                with foreign_errors(self._failure):
                    given = list(texts)
                    results.append(self._tokenizer.encode_batch(given, add_special_tokens=special))
            except RdrrError as error:
                errors.append(error)

        thread = Thread(target=run, name="rdrr-tokenizer", daemon=True)
        thread.start()
        thread.join(seconds)
        if errors:
            raise errors[0]
        if not results:
            raise GenerationError(
                "the tokenizer takes too long",
                where=self._where,
                expected=f"at most {seconds:.0f} s",
                hint=_HINT,
            )
        return results[0]

    def _unreadable(self, said: str) -> ManifestError:
        return ManifestError("cannot be read as a tokenizer", where=self._where, found=said)

    def _failure(self, said: str) -> GenerationError:
        return GenerationError("the tokenizer fails", where=self._where, found=said, hint=_HINT)


class BoundedStream:
    """A streaming decoder: takes token ids and returns text once it can no longer change.

    All the texts that it returns are together the text of all ids decoded at once, from the end of
    the prompt's.

    Args:
        tokenizer: The tokenizer that the ids belong to.
        prompt: Ids that come before; their text is not returned.
    """

    def __init__(self, tokenizer: BoundedTokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        tokens = [tokenizer.token(token_id) for token_id in prompt]
        special = tokenizer.special_tokens
        before = [token for token in tokens if token is not None and token not in special]
        self._stream = SegmentStream(
            token_decoder(tokenizer.decoder_steps, tokenizer.join, before, tokenizer.edits)
        )

    def feed(self, token_id: int) -> str:
        """Take one token id and return the text that is complete with it, often none.

        Raises:
            UsageError: The value is not a token id.
            GenerationError: The tokenizer fails on it.
        """
        return visible(self.segments(token_id))

    def segments(self, token_id: int) -> list[Segment]:
        """Take one token id and return the text that is complete with it, and special tokens.

        Raises:
            UsageError: The value is not a token id.
            GenerationError: The tokenizer fails on it.
        """
        token = self._tokenizer.token(token_id)
        if token is None:
            return []
        return self._stream.push(token, special=token in self._tokenizer.special_tokens)

    def held(self) -> list[Segment]:
        """Return what would follow if no more ids came, incomplete characters aside."""
        return self._stream.held()

    def rest(self) -> list[Segment]:
        """Return what follows the last id: incomplete characters, for example."""
        return self._stream.rest()


def checked_id(value: Any) -> int:
    """Return a token id as a plain integer.

    Raises:
        UsageError: The value is not an integer from 0 to `MAX_ID`.
    """
    try:
        token_id = value.__index__() if not isinstance(value, bool) else -1
    except (AttributeError, TypeError):
        token_id = -1
    if not 0 <= token_id <= MAX_ID:
        raise UsageError("not a token id", expected=f"0 to {MAX_ID}", found=repr(value)[:100])
    return int(token_id)


def normalized_texts(normalizer: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
    """Return texts as the normalizer that a `tokenizer.json` describes changes them.

    Raises:
        UsageError: A text cannot be written in UTF-8, or is too long.
        FormatError: The normalizer could make a text grow too much.
        ManifestError: The library does not read it.
    """
    from tokenizers import Tokenizer

    with foreign_errors(lambda said: ManifestError("cannot be read as a normalizer", found=said)):
        file = json.dumps({"model": _NO_WORDS, "normalizer": normalizer})
        steps = Tokenizer.from_str(file).normalizer
        growth = normalizer_growth(_description(steps))
        for text in texts:
            check_text_size(_utf8_size(text), growth, "the text is too long to be normalized")
        return list(map(steps.normalize_str, texts))


def _description(step: Any) -> Any:
    """Return the library's JSON description of a normalizer, decoder or post-processor."""
    return None if step is None else json.loads(step.__getstate__())


def _utf8_size(text: str) -> int:
    if not isinstance(text, str):
        raise UsageError("not a text", expected="a string", found=type(text).__name__)
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        # Python turns bytes of a command line that are not UTF-8 into lone surrogates.
        raise UsageError(
            "the text is not in UTF-8",
            expected="Unicode characters",
            found=f"{error.object[error.start]!a} at {error.start}",
        ) from None
