"""Write SentencePiece models, so that tests need no package for them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)

Piece = tuple[str, float, int]


def sentencepiece_model(
    pieces: Sequence[Piece],
    kind: int,
    *,
    byte_fallback: bool = True,
    prefix: bool = True,
    removes_spaces: bool = False,
    charsmap: bytes = b"",
) -> bytes:
    """Return the content of a `tokenizer.model`, with the fields that readers need."""
    listed = b"".join(_field(1, _piece(*piece)) for piece in pieces)
    # Fields that a reader skips: a string, a 64-bit number and a float.
    trainer = _field(2, b"model") + _tag(900, 1) + struct.pack("<d", 1.5) + _tag(10, 5)
    trainer += struct.pack("<f", 0.9995) + _number(3, kind) + _number(35, byte_fallback)
    trainer += _number(40, 0) + _number(41, 1) + _number(42, 2) + _number(43, -1)
    normalizer = _field(1, b"identity") + _field(2, charsmap)
    # Both flags are true where the file does not state them.
    normalizer += b"".join(
        _number(at, 0) for at, is_set in ((3, prefix), (4, removes_spaces)) if not is_set
    )
    return listed + _field(2, trainer) + _field(3, normalizer)


def _piece(text: str, score: float, kind: int) -> bytes:
    return _field(1, text.encode()) + _tag(2, 5) + struct.pack("<f", score) + _number(3, kind)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(int(value) % (1 << 64))


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
