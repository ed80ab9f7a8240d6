"""Reading `tokenizer.model`, the file of a SentencePiece vocabulary.

The file is a protocol buffer of which nine fields matter, so it is read here: the package
sentencepiece could encode text, but a package needs a tokenizer.json, for which the vocabulary is
enough. Source of the numbers: `sentencepiece_model.proto` of SentencePiece.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_format.errors import SourceError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces."""

UNIGRAM, BPE = 1, 2
"""Types of models."""

MAX_PIECES = 1 << 21
"""Largest number of pieces; published vocabularies reach an eighth of it."""

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_UNKNOWN_ID, _BOS_ID, _EOS_ID, _PAD_ID = 40, 41, 42, 43
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_WHITESPACE = 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Piece:
    """One token.

    Attributes:
        text: Its text, in which `▁` stands for a space.
        score: Its score; higher ones are preferred.
        type: Its type, such as `NORMAL`.
    """

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceModel:
    """A SentencePiece vocabulary.

    Attributes:
        pieces: The tokens in the order of their ids.
        type: `UNIGRAM` or `BPE`.
        byte_fallback: Whether unknown characters become tokens of their bytes.
        unknown_id: Id of the token for what no piece covers.
        special_ids: Ids by the name of a special token, such as `bos_token`.
        charsmap: Compiled normalization of characters; empty for none.
        adds_prefix: Whether a space is put before a text.
        removes_spaces: Whether spaces at the ends and repeated spaces are removed.
    """

    pieces: tuple[Piece, ...]
    type: int
    byte_fallback: bool
    unknown_id: int
    special_ids: dict[str, int]
    charsmap: bytes
    adds_prefix: bool
    removes_spaces: bool


def read_sentencepiece(content: bytes, where: object) -> SentencePieceModel:
    """Read the content of a `tokenizer.model`.

    Raises:
        SourceError: The content is damaged, or is no SentencePiece model.
    """
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    try:
        for number, value in _fields(content):
            if number == _PIECES and isinstance(value, bytes):
                pieces.append(_piece(value))
            elif number == _TRAINER and isinstance(value, bytes):
                trainer |= dict(_fields(value))
            elif number == _NORMALIZER and isinstance(value, bytes):
                normalizer |= dict(_fields(value))
            if len(pieces) > MAX_PIECES:
                raise ValueError(f"more than {MAX_PIECES} pieces")
    except (ValueError, IndexError, struct.error) as error:
        raise SourceError("not a SentencePiece model", where=where, found=error) from error
    if not pieces:
        raise SourceError("not a SentencePiece model", where=where, found="no pieces")
    ids = {name: _integer(trainer, key, default) for name, key, default in _SPECIAL}
    charsmap = normalizer.get(_CHARSMAP, b"")
    return SentencePieceModel(
        pieces=tuple(pieces),
        type=_integer(trainer, _MODEL_TYPE, UNIGRAM),
        byte_fallback=bool(_integer(trainer, _BYTE_FALLBACK, 0)),
        unknown_id=_integer(trainer, _UNKNOWN_ID, 0),
        special_ids={name: index for name, index in ids.items() if 0 <= index < len(pieces)},
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        adds_prefix=bool(_integer(normalizer, _DUMMY_PREFIX, 1)),
        removes_spaces=bool(_integer(normalizer, _EXTRA_WHITESPACE, 1)),
    )


_SPECIAL = (
    ("unk_token", _UNKNOWN_ID, 0),
    ("bos_token", _BOS_ID, 1),
    ("eos_token", _EOS_ID, 2),
    ("pad_token", _PAD_ID, -1),
)
"""Special tokens with the number of their field and its default."""


def _piece(content: bytes) -> Piece:
    fields = dict(_fields(content))
    text, score = fields.get(_PIECE_TEXT, b""), fields.get(_PIECE_SCORE, b"\0\0\0\0")
    if not isinstance(text, bytes) or not isinstance(score, bytes):
        raise ValueError("a piece without text")
    return Piece(
        text.decode(), struct.unpack("<f", score)[0], _integer(fields, _PIECE_TYPE, NORMAL)
    )


def _integer(fields: dict[int, int | bytes], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        return default
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of the fields of a message; of fixed32 fields the four bytes.

    Raises:
        ValueError: The message is cut off, or has a field of an unknown kind.
    """
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"a field of kind {kind}")
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            size, at = _varint(content, at)
        if at + size > len(content):
            raise ValueError("the file is cut off")
        yield number, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise ValueError("the file is cut off")
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
