"""Text to token ids and back, streaming. It knows the tokenizer's file, not the model."""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_format.bounded_tokenizer import BoundedStream, BoundedTokenizer


class TextCodec:
    """A tokenizer of a package.

    Args:
        tokenizer_json: Contents of `tokenizer.json`.
        bos_token_id: Put before every prompt when `add_bos` is set and the tokenizer's own
            post-processor does not do so.
        add_bos: The manifest's `tokenizer.addBosToken`.

    Raises:
        ManifestError: The file is not a tokenizer, or one that is refused.
    """

    def __init__(
        self, tokenizer_json: bytes, *, bos_token_id: int | None = None, add_bos: bool | None = None
    ) -> None:
        self._tokenizer = BoundedTokenizer(tokenizer_json)
        self._bos = bos_token_id if add_bos else None

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, special tokens of the tokenizer's post-processor included.

        Raises:
            UsageError: The text cannot be written in UTF-8, or is too long.
            GenerationError: The tokenizer fails at it, or takes too long.
        """
        ids = self._tokenizer.encode(text)
        if self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        return ids

    def encode_as_is(self, text: str) -> list[int]:
        """Ids of a text that has all its special tokens, as a chat template writes it.

        Raises:
            UsageError: The text cannot be written in UTF-8, or is too long.
            GenerationError: The tokenizer fails at it, or takes too long.
        """
        return self._tokenizer.encode(text, special=False)

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a special token."""
        return self._tokenizer.is_special(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens.

        Raises:
            UsageError: Something is no id, or the text would be too long.
            GenerationError: The tokenizer fails at them.
        """
        return self._tokenizer.decode(ids)

    def stream(self) -> BoundedStream:
        """A decoder that is fed one id at a time.

        A character may need several tokens; nothing is given out before all its bytes are there.
        """
        return self._tokenizer.stream()
