"""Image files that lie about their size, are cut short or hold something else."""

from __future__ import annotations

import struct
import warnings
import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from rdrr_format.errors import GenerationError
from rdrr_runtime.images.decode import FORMATS, MAX_BYTES, read_image
from rdrr_runtime.images.patches import image_patches
from support.images import QWEN, drawn_image
from support.seeds import generator_of

SMALL = drawn_image(24, 20)


def file_of(kind: str, image: Image.Image = SMALL) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    length, crc = struct.pack(">I", len(content)), struct.pack(">I", zlib.crc32(kind + content))
    return length + kind + content + crc


def png(width: int, height: int, *before: bytes, pixels: bytes = b"") -> bytes:
    """Return a PNG of grey pixels, all of them black if none are given."""
    lines = pixels or b"\0" * ((width + 1) * height if width * height < 1 << 20 else 9)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), *before, chunk(b"IDAT", zlib.compress(lines))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def stated(content: bytes, at: int, layout: str, *sizes: int) -> bytes:
    """Return a file whose header states another size."""
    size = struct.pack(layout, *sizes)
    return content[:at] + size + content[at + len(size) :]


def webp(kind: bytes, content: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


JPEG = file_of("JPEG")
HUGE = {
    "png": png(40_000, 40_000),
    "png of many rows": png(1, 60_000_000),
    "jpeg": stated(JPEG, JPEG.index(b"\xff\xc0") + 5, ">HH", 65_000, 65_000),
    "gif": stated(file_of("GIF"), 6, "<HH", 65_535, 65_535),
    "bmp": stated(file_of("BMP"), 18, "<ii", 30_000, 30_000),
    "webp, extended": webp(b"VP8X", bytes(4) + b"\xff\x3f\0" * 2),
    "webp, lossless": webp(b"VP8L", b"\x2f\xff\xff\xff\x0f"),
    "webp, lossy": webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a\xff\x3f\xff\x3f"),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_size_beyond_the_limit_is_refused_before_any_pixel_is_read(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GenerationError, match=r"at most 50,000,000 pixels") as refused:
            read_image(HUGE[name], "photo")
    assert refused.value.where == "photo"


def test_the_same_headers_with_their_true_sizes_are_read() -> None:
    for kind in FORMATS:
        assert read_image(file_of(kind)).size == (20, 24)


def test_a_large_file_and_an_empty_one_are_refused() -> None:
    with pytest.raises(GenerationError, match=rf"the file is too large.*at most {MAX_BYTES} bytes"):
        read_image(bytes(MAX_BYTES + 1))
    with pytest.raises(GenerationError, match=r"no image that is read.*PNG, JPEG, WEBP, GIF, BMP"):
        read_image(b"")


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "EPS", "PCX", "TGA", "JPEG2000", "AVIF"])
def test_other_formats_are_not_tried(kind: str) -> None:
    try:
        content = file_of(kind)
    except (OSError, KeyError):
        pytest.skip(f"this Pillow does not write {kind}")
    with pytest.raises(GenerationError, match=r"no image that is read.*PNG, JPEG, WEBP, GIF, BMP"):
        read_image(content)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_an_image_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(GenerationError, match=r"image cannot be read|no image that is read"):
        read_image(png(*size, pixels=b"\0"))


def test_a_column_of_pixels_is_read_and_then_too_narrow_for_a_model() -> None:
    image = read_image(png(1, 40_000))
    assert image.size == (1, 40_000)
    with pytest.raises(GenerationError, match=r"too narrow.*found 1 x 40000"):
        image_patches(QWEN, image)


def test_a_png_whose_pixels_are_missing_is_refused_and_the_whole_one_is_not() -> None:
    assert np.asarray(read_image(png(30, 30))).max() == 0
    with pytest.raises(GenerationError, match=r"image cannot be read"):
        read_image(png(30, 30, pixels=b"\0" * 40))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_short_is_refused(kind: str) -> None:
    content = file_of(kind)
    for length in {1, 8, 16, 30, len(content) // 2, len(content) * 3 // 4}:
        with pytest.raises(GenerationError, match=r"cannot be read|no image that is read"):
            read_image(content[:length])


def test_texts_and_profiles_that_unpack_to_much_more_are_refused() -> None:
    bomb = zlib.compress(bytes(32 << 20), 9)
    for kind in (b"zTXt", b"iCCP"):
        assert read_image(png(30, 30, chunk(kind, b"name\0\0" + zlib.compress(b"x")))).size
        with pytest.raises(GenerationError, match=r"cannot be read.*too large"):
            read_image(png(30, 30, chunk(kind, b"name\0\0" + bomb)))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_with_changed_bytes_is_an_image_or_one_error(
    kind: str, request: pytest.FixtureRequest
) -> None:
    rng = generator_of(request)
    content = np.frombuffer(file_of(kind), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            changed = content.copy()
            places = rng.integers(0, len(content), rng.integers(1, 5))
            changed[places] = rng.integers(0, 256, len(places))
            with suppress(GenerationError):
                assert read_image(changed.tobytes()).mode == "RGB"
