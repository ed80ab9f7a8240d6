"""Image files: small ones of each format, and damage to them."""

from __future__ import annotations

import zlib
from io import BytesIO

from fuzz.byte_edits import damaged
from hypothesis import strategies as st
from PIL import Image
from support.images import drawn_image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _file(kind: str, mode: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP") else {}
    buffer = BytesIO()
    drawn_image(24, 20).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


SOUND_IMAGES = tuple(
    _file(*names)
    for names in (
        ("PNG", "RGB"),
        ("PNG", "LA"),
        ("PNG", "P"),
        ("PNG", "I;16"),
        ("JPEG", "RGB"),
        ("JPEG", "CMYK"),
        ("WEBP", "RGBA"),
        ("GIF", "P"),
        ("BMP", "RGB"),
    )
)


def _with_checksums(content: bytes) -> bytes:
    """Return a PNG with the right checksum for each chunk, so that readers look into them."""
    if not content.startswith(_SIGNATURE):
        return content
    parts, at = [_SIGNATURE], len(_SIGNATURE)
    while at + 12 <= len(content):
        end = at + 8 + int.from_bytes(content[at : at + 4], "big")
        body = content[at + 4 : end]
        parts += [content[at : at + 4], body, zlib.crc32(body).to_bytes(4, "big")]
        at = end + 4
    return b"".join([*parts, content[at:]])


_DAMAGED = damaged(st.sampled_from(SOUND_IMAGES))
IMAGES = st.one_of(_DAMAGED, _DAMAGED.map(_with_checksums))
