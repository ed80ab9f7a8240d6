"""Read an image file into red, green and blue, whatever the file holds.

Files are untrusted. Only formats whose decoders in Pillow are widely used are tried, and the size
that a file states is limited before memory is taken for its pixels. Pixels are those of
transformers' processors that use Pillow: what is transparent becomes white, profiles of colours are
not applied, and of an animation the first frame is taken. Values of 16 bits keep their high byte.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
from rdrr_format.errors import GenerationError, RdrrError
from rdrr_format.extras import import_extra

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The formats that are read, by Pillow's names."""

MAX_BYTES: Final = 64 << 20
"""Largest size in bytes of an image file."""

MAX_PIXELS: Final = 50_000_000
"""Most pixels of an image file. Pillow takes four bytes for each, and several copies are needed."""

MAX_ANIMATED_PIXELS: Final = 1 << 28
"""Most pixels of all frames of an animation, each of which is decoded."""

_ORIENTATION = 0x0112
"""Number of the EXIF tag that says how the image must be turned to be upright."""

_OPENING = Lock()
"""Filters of warnings belong to the process, so that only one thread may change them at a time."""


def read_image(content: bytes, where: object = None) -> Image:
    """Return the upright image of a file, in mode RGB.

    Args:
        content: The bytes of the file.
        where: What an error message calls the file.

    Raises:
        GenerationError: The file is no image of a known format, is damaged, or is too large.
        UsageError: Pillow is not installed.
    """
    _check_content(content, where)
    with _decoding(where):
        image = _opened(content, where)
        image.load()
        _check_size(image.size, where)
        return _upright(_as_rgb(image), _orientation(image))


def _check_content(content: bytes, where: object) -> None:
    """Check, before a file is decoded, that it can be."""
    import_extra("PIL", "images", "an image in a prompt", where=where)
    if len(content) > MAX_BYTES:
        raise _refused("the file is too large", where, f"at most {MAX_BYTES} bytes", len(content))


@dataclass(frozen=True)
class Animation:
    """The frames of an animated file.

    Attributes:
        count: How many there are.
        rate: How many there are in a second; None if the file does not say.
        size: Their height and width.
        read: Returns one by its number, in mode RGB.
    """

    count: int
    rate: float | None
    size: tuple[int, int]
    read: Callable[[int], Image]


def read_animation(content: bytes, max_frames: int, where: object = None) -> Animation:
    """Return the frames of a file, which are decoded when they are read.

    Args:
        content: The bytes of the file.
        max_frames: Most frames.
        where: What an error message calls the file.

    Raises:
        GenerationError: The file is no image of a known format, is damaged, or is too large.
        UsageError: Pillow is not installed.
    """
    _check_content(content, where)
    image = _opened(content, where)
    with _decoding(where):
        count = int(getattr(image, "n_frames", 1))
    width, height = image.size
    most = min(max_frames, MAX_ANIMATED_PIXELS // max(width * height, 1))
    if count > most:
        raise _refused("the animation has too many frames", where, f"at most {most}", count)

    def read(number: int) -> Image:
        with _decoding(where):
            image.seek(number)
            image.load()
            _check_size(image.size, where)
            return _as_rgb(image)

    with _decoding(where):
        return Animation(count, _rate(image, count), (height, width), read)


def _rate(image: Image, count: int) -> float | None:
    """Return the frames in a second, by the mean time of all; None if the file does not say."""
    milliseconds = 0.0
    for number in range(count):
        image.seek(number)
        image.load()  # the time of a frame of WebP is known with its pixels
        stated = image.info.get("duration")
        milliseconds += stated if isinstance(stated, int | float) else 0
    return 1000 * count / milliseconds if 0 < milliseconds < float("inf") else None


@contextmanager
def _decoding(where: object) -> Iterator[None]:
    """Turn whatever a decoder raises for a damaged file into one error."""
    try:
        yield
    except RdrrError:
        raise
    except Exception as error:  # decoders raise errors of many types for damaged files
        reason = str(error) or type(error).__name__
        raise _refused("the image cannot be read", where, found=reason) from error


def _opened(content: bytes, where: object) -> Image:
    """Return the image of a file of which only the header has been read."""
    from io import BytesIO

    from PIL import Image, UnidentifiedImageError

    # Pillow's decoder of WebP takes the memory of the whole image when a file is opened.
    _check_size(_webp_size(content), where)
    with _OPENING, warnings.catch_warnings():
        # Whatever Pillow finds odd in a header is decided by the limit below, or when it is read.
        warnings.simplefilter("ignore")
        try:
            image = Image.open(BytesIO(content), formats=FORMATS)
        except UnidentifiedImageError:
            expected = ", ".join(FORMATS)
            raise _refused("the file is no image that is read", where, expected) from None
        except Image.DecompressionBombError as error:
            raise _too_large(where, error) from None
    _check_size(image.size, where)
    return image


def _webp_size(content: bytes) -> tuple[int, int]:
    """Return the width and height that the header of a WebP file states; zeros for other files."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return 0, 0
    kind, head = content[12:16], content[16:30].ljust(14, b"\0")
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[8:11], "little"), 1 + int.from_bytes(head[11:14], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[5:9], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (10, 12))
    return width, height


def _check_size(size: tuple[int, int], where: object) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise _too_large(where, f"{width} x {height}")


def _as_rgb(image: Image) -> Image:
    """Return an image in mode RGB, on white where it is transparent."""
    from PIL import Image

    if image.mode.startswith("I"):
        return _from_16_bits(image).convert("RGB")
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image if image.mode == "RGBA" else image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _from_16_bits(image: Image) -> Image:
    """Return the high bytes of a grey image; Pillow's conversion would make nearly all white."""
    from PIL import Image

    values = np.asarray(image)
    transparent = image.info.get("transparency")
    grey = (values >> 8).astype(np.uint8)
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)


def _orientation(image: Image) -> int:
    """Return how EXIF says the image must be turned; 1, which means not at all, without that."""
    try:
        stated = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF is common, and viewers ignore it
        return 1
    return stated if isinstance(stated, int) else 1


def _upright(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _too_large(where: object, found: object) -> RdrrError:
    return _refused("the image is too large", where, f"at most {MAX_PIXELS:,} pixels", found)


def _refused(
    message: str, where: object, expected: object = None, found: object = None
) -> RdrrError:
    return GenerationError(message, where=where, expected=expected, found=found)
