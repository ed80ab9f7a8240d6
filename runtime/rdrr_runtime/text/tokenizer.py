"""Encode text as token ids and decode ids to text, whole or as a stream.

This module reads the tokenizer's file; it knows nothing about the model.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cached_property

from rdrr_format.bounded_json import parse_json
from rdrr_format.bounded_tokenizer import JSON_BOUNDS, BoundedStream, BoundedTokenizer, Encoded
from rdrr_format.errors import GenerationError, ManifestError
from rdrr_format.token_stream import REPLACEMENT, bytes_of, visible

from rdrr_runtime.text.control_tokens import ControlTokens, has_marks, marked_parts


class TextCodec:
    """The tokenizer of a package. Without a file, ids have no text, and all else is refused.

    Args:
        tokenizer_json: Contents of `tokenizer.json`; None for a package without one.
        bos_token_id: Id that is put before every prompt if `add_bos` is set and the tokenizer's
            own post-processor has not put it there.
        add_bos: The manifest's `tokenizer.addBosToken`.
        where: The package, for messages.

    Raises:
        ManifestError: The file is not a tokenizer, or a tokenizer that this version refuses; from
            every method but `stream` and `continuation`: there is no file.
    """

    def __init__(
        self,
        tokenizer_json: bytes | None,
        *,
        bos_token_id: int | None = None,
        add_bos: bool | None = None,
        where: object = None,
    ) -> None:
        self._content, self._where = tokenizer_json, where
        self._opened = None if tokenizer_json is None else BoundedTokenizer(tokenizer_json)
        self._truncating: tuple[int, BoundedTokenizer] | None = None
        self._bos = bos_token_id if add_bos else None

    @property
    def _tokenizer(self) -> BoundedTokenizer:
        if self._opened is None:
            raise ManifestError(
                "the package has no tokenizer, so it takes and gives token ids only",
                where=self._where,
                hint="give ids and no stop strings, or put a tokenizer.json beside the checkpoint "
                "and convert it again",
            )
        return self._opened

    def require(self) -> None:
        """Check that there is a tokenizer."""
        _ = self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, with the special tokens that the post-processor adds.

        Raises:
            UsageError: The text cannot be encoded in UTF-8, or is too long.
            GenerationError: The tokenizer fails on the text, or takes too long.
        """
        return self._begun(self._tokenizer.encode(text))

    def encode_texts(
        self, texts: Sequence[str | tuple[str, str]], limit: int | None = None
    ) -> list[Encoded]:
        """Return the tokens of texts or pairs, with the special tokens that a prompt has.

        Args:
            texts: Texts, or pairs of texts.
            limit: Most tokens of a text or pair, whose end is left out; None for no limit.

        Raises:
            UsageError: A text cannot be encoded in UTF-8, or is too long.
            GenerationError: The tokenizer fails on a text, or takes too long.
        """
        tokenizer = self._tokenizer
        if limit is not None:
            adds_bos = self._bos is not None and tokenizer.encode("")[:1] != [self._bos]
            tokenizer = self._truncating_at(max(limit - adds_bos, 1))
        return [self._begun_text(text) for text in tokenizer.encode_all(texts)]

    def _truncating_at(self, limit: int) -> BoundedTokenizer:
        """Return the tokenizer that leaves out the end of texts.

        Opening one takes longer than encoding a text, so the last one is kept.
        """
        last = self._truncating
        if last is None or last[0] != limit:
            last = self._truncating = (limit, BoundedTokenizer(self._content or b"", limit=limit))
        return last[1]

    def _begun_text(self, text: Encoded) -> Encoded:
        """Return a text with the token that every prompt begins with, if it is not there."""
        if self._bos is None or text.ids[:1] == [self._bos]:
            return text
        return Encoded(
            [self._bos, *text.ids],
            [0, *text.types],
            text.is_truncated,
            [(0, 0), *text.spans],
            [True, *text.special],
        )

    def _begun(self, ids: list[int]) -> list[int]:
        """Return ids with the token that every prompt begins with, if it is not there."""
        if self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        return ids

    def encode_as_is(self, text: str) -> list[int]:
        """Return the ids of a text without adding special tokens.

        Chat templates write the special tokens themselves.

        Raises:
            UsageError: The text cannot be encoded in UTF-8, or is too long.
            GenerationError: The tokenizer fails on the text, or takes too long.
        """
        return self._tokenizer.encode(text, special=False)

    def encode_continued(self, text: str) -> list[int]:
        """Return the ids of a text that follows another, without special tokens.

        A tokenizer that puts a space before every text puts none before this one.

        Raises:
            UsageError: The text cannot be encoded in UTF-8, or is too long.
            GenerationError: The tokenizer fails on the text, or takes too long.
        """
        return continued(self._tokenizer, text)

    def encode_marked(self, text: str, *, follows: bool = False) -> list[int]:
        """Return the ids of the text of a conversation, in which some parts are marked.

        Marked parts (see `control_tokens`) become no control tokens, and all other text the ids
        that it has in the middle of a text.

        Args:
            text: The text that a template has written.
            follows: Whether the text follows another.

        Raises:
            UsageError: The text cannot be encoded in UTF-8, or is too long.
            GenerationError: The tokenizer fails on the text or takes too long, or has no tokens
                but a control token for a marked part.
        """
        if not has_marks(text):
            return self.encode_continued(text) if follows else self.encode_as_is(text)
        ids: list[int] = []
        for part, is_marked in marked_parts(text):
            if is_marked:
                ids += self._encode_plain(part)
            elif ids or follows:
                ids += self.encode_continued(part)
            else:
                ids += self.encode_as_is(part)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text none of which is an added token."""
        added = self.added_tokens()
        for parts in ((text,), tuple(text)):
            ids = [token_id for part in parts for token_id in continued(self._plain, part)]
            if not any(self._tokenizer.token(token_id) in added for token_id in ids):
                return ids
        raise GenerationError(
            "a message holds a control token that has no other tokens",
            found=text,
            hint="change the message, or allow control tokens in messages",
        )

    @cached_property
    def _plain(self) -> BoundedTokenizer:
        """The tokenizer without added tokens."""
        description = parse_json(self._content or b"", JSON_BOUNDS)
        return BoundedTokenizer(json.dumps(description | {"added_tokens": []}).encode())

    def control_tokens(self, texts: Collection[str]) -> ControlTokens:
        """Return the control tokens with the given texts, to be kept out of messages."""
        known = set(texts)

        def becomes(text: str) -> bool:
            ids = self._tokenizer.encode(text, special=False)
            return any(self._tokenizer.token(token_id) in known for token_id in ids)

        return ControlTokens(known, becomes if self._tokenizer.normalizes else None)

    def added_tokens(self) -> dict[str, bool]:
        """Return the added tokens, with whether they are special."""
        return self._tokenizer.added_tokens()

    def tokens_after_text(self) -> int:
        """Return how many special tokens the post-processor adds after a text."""
        plain, whole = self.encode_as_is("a"), self.encode("a")
        first = next((at for at in range(len(whole)) if whole[at:][: len(plain)] == plain), 0)
        return len(whole) - first - len(plain)

    def token(self, token_id: int) -> str | None:
        """Return the token of an id, as the vocabulary has it; None if there is none."""
        return self._tokenizer.token(token_id)

    def is_special(self, token_id: int) -> bool:
        """Return whether an id is that of a special token."""
        return self._tokenizer.is_special(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens.

        Raises:
            UsageError: An element of `ids` is not an id, or the text would be too long.
            GenerationError: The tokenizer fails on the ids.
        """
        return self._tokenizer.decode(ids)

    def continuation(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text that token ids add to that of a prompt, without special tokens.

        Raises:
            UsageError: An element of `ids` is not an id, or the text would be too long.
            GenerationError: The tokenizer fails on the ids.
        """
        stream = self.stream(prompt)
        return "".join([*map(stream.feed, ids), visible(stream.rest())])

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token within a text, where it keeps its space.

        Those of the tokens of a character together are the character in UTF-8. A special token has
        none.
        """
        text = self.continuation(self.encode_as_is("a")[-1:], [token_id])
        token = self.token(token_id) if REPLACEMENT in text else None
        return text.encode("utf-8") if token is None else bytes_of(token)

    def stream(self, prompt: Sequence[int] = ()) -> BoundedStream:
        """Return a decoder that takes one id at a time, after those of a prompt.

        A character may consist of several tokens; it is returned once all its bytes have arrived.
        """
        return (self._opened or BoundedTokenizer(_NO_TOKENS)).stream(prompt)


def continued(tokenizer: BoundedTokenizer, text: str) -> list[int]:
    """Return the ids of a text that follows another, without special tokens.

    Where the tokenizer puts a space before every text, the ids are those after a character that
    does not merge with the text.

    Args:
        tokenizer: The tokenizer.
        text: The text.

    Raises:
        UsageError: The text cannot be encoded in UTF-8, or is too long.
        GenerationError: The tokenizer fails on the text, or takes too long.
    """
    alone = tokenizer.encode(text, special=False)
    letter = tokenizer.encode(_LETTER, special=False)
    stream = tokenizer.stream(letter)
    if "".join(map(stream.feed, letter)) == _LETTER:
        return alone
    for before in ("\n", ".", _LETTER):
        first = tokenizer.encode(before, special=False)
        ids = tokenizer.encode(before + text, special=False)
        if ids[: len(first)] == first:
            return ids[len(first) :]
    return alone


_LETTER = "a"
_NO_TOKENS = b'{"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}'
