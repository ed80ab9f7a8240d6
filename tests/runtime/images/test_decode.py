"""Files of every kind become the pixels that transformers' processors with Pillow see."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from PIL import Image, ImageOps
from rdrr_runtime.images.decode import read_image
from support.images import drawn_image
from transformers.image_transforms import convert_to_rgb


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def with_alpha() -> Image.Image:
    image = drawn_image(9, 7).convert("RGBA")
    image.putalpha(drawn_image(9, 7).getchannel("G"))
    return image


def png_of_16_bits(image: Image.Image) -> bytes:
    """Return a PNG whose values are those of an image and a low byte, which Pillow cannot write."""
    values = np.asarray(image).astype(">u2") * 256 + 77
    lines = b"".join(b"\0" + row.tobytes() for row in values)
    kind = {"RGB": 2, "RGBA": 6, "LA": 4}[image.mode]
    header = struct.pack(">IIBBBBB", *image.size, 16, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc32(name + content))
        for name, content in chunks
    )


RGB = drawn_image(9, 7)
GREY = RGB.convert("L")
FILES = {
    "png": file_of(RGB, "PNG"),
    "png, grey": file_of(GREY, "PNG"),
    "png, one bit": file_of(RGB.convert("1"), "PNG"),
    "png, alpha": file_of(with_alpha(), "PNG"),
    "png, grey and alpha": file_of(with_alpha().convert("LA"), "PNG"),
    "png, palette": file_of(RGB.convert("P"), "PNG"),
    "png, transparent palette": file_of(RGB.convert("P"), "PNG", transparency=3),
    "png, transparent colour": file_of(GREY, "PNG", transparency=int(np.asarray(GREY)[4, 4])),
    "jpeg": file_of(RGB, "JPEG"),
    "jpeg, progressive": file_of(RGB, "JPEG", progressive=True),
    "jpeg, cmyk": file_of(RGB.convert("CMYK"), "JPEG"),
    "webp": file_of(RGB, "WEBP"),
    "webp, lossless with alpha": file_of(with_alpha(), "WEBP", lossless=True),
    "gif, animated": file_of(RGB, "GIF", save_all=True, append_images=[GREY]),
    "webp, animated": file_of(RGB, "WEBP", save_all=True, append_images=[GREY], lossless=True),
    "bmp": file_of(RGB, "BMP"),
    "png, colour profile": file_of(RGB, "PNG", icc_profile=b"profile"),
    "png, animated": file_of(RGB, "PNG", save_all=True, append_images=[GREY.convert("RGB")]),
    "png, 16 bits": png_of_16_bits(RGB),
    "png, 16 bits and alpha": png_of_16_bits(with_alpha()),
    "png, 16 bits of grey and alpha": png_of_16_bits(with_alpha().convert("LA")),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_transformers(name: str) -> None:
    opened = ImageOps.exif_transpose(Image.open(BytesIO(FILES[name])))
    expected = convert_to_rgb(opened, return_numpy=True)
    image = read_image(FILES[name])
    assert (image.mode, image.size) == ("RGB", (7, 9))
    np.testing.assert_array_equal(np.asarray(image), expected)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_images_are_turned_as_exif_says(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = file_of(RGB, kind, exif=exif)
    expected = convert_to_rgb(ImageOps.exif_transpose(Image.open(BytesIO(content))), True)
    np.testing.assert_array_equal(np.asarray(read_image(content)), expected)


def test_damaged_exif_turns_nothing() -> None:
    content = file_of(RGB, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff damaged")
    np.testing.assert_array_equal(read_image(content), read_image(file_of(RGB, "JPEG")))


def test_grey_of_16_bits_keeps_its_high_bytes_and_what_is_transparent_is_white() -> None:
    values = np.arange(63, dtype=np.uint16).reshape(9, 7) * 1000
    content = file_of(Image.fromarray(values), "PNG")
    np.testing.assert_array_equal(np.asarray(read_image(content))[..., 1], values >> 8)
    transparent = file_of(Image.fromarray(values), "PNG", transparency=62000)
    expected = np.where(values == 62000, 255, values >> 8)
    np.testing.assert_array_equal(np.asarray(read_image(transparent))[..., 1], expected)
