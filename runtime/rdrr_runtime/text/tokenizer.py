"""Text to token ids and back, streaming. It knows the tokenizer's file, not the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdrr_format.errors import ManifestError, UsageError


class TextCodec:
    """A tokenizer of a package.

    Args:
        tokenizer_json: Contents of `tokenizer.json`.
        bos_token_id: Put before every prompt when `add_bos` is set and the tokenizer's own
            post-processor does not do so.
        add_bos: The manifest's `tokenizer.addBosToken`.

    Raises:
        ManifestError: The file is not a tokenizer.
    """

    def __init__(
        self, tokenizer_json: bytes, *, bos_token_id: int | None = None, add_bos: bool | None = None
    ) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # the library raises a bare Exception
            raise ManifestError(
                "cannot be read as a tokenizer", where="tokenizer.json", found=error
            ) from error
        self._bos = bos_token_id if add_bos else None

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, special tokens of the tokenizer's post-processor included.

        Raises:
            UsageError: The text cannot be written in UTF-8.
        """
        ids: list[int] = self._tokenizer.encode(_checked(text)).ids
        if self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        return ids

    def encode_as_is(self, text: str) -> list[int]:
        """Ids of a text that has all its special tokens, as a chat template writes it.

        Raises:
            UsageError: The text cannot be written in UTF-8.
        """
        ids: list[int] = self._tokenizer.encode(_checked(text), add_special_tokens=False).ids
        return ids

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a special token."""
        added = self._tokenizer.get_added_tokens_decoder().get(token_id)
        return added is not None and bool(added.special)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        text: str = self._tokenizer.decode(list(ids))
        return text

    def stream(self) -> TextStream:
        """A decoder that is fed one id at a time."""
        return TextStream(self._tokenizer)


class TextStream:
    """Ids in, text out as soon as it is certain.

    A character may need several tokens; nothing is given out before all its bytes are there.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def feed(self, token_id: int) -> str:
        """Text that became certain with this id, often one word, sometimes nothing."""
        piece: str | None = self._stream.step(self._tokenizer, token_id)
        return piece or ""


def _checked(text: str) -> str:
    # Bytes of a command line or a pipe that are no UTF-8 become lone surrogates.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            "the text is not in UTF-8",
            expected="characters",
            found=f"{error.object[error.start]!a} at {error.start}",
        ) from None
    return text
