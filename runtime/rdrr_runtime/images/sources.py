"""The images of a conversation: taken out of its messages, and read from data URLs or files."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdrr_format.errors import FormatError, GenerationError, StoreError, UsageError
from rdrr_format.locations import local_path
from rdrr_format.options import shown
from rdrr_format.regular_files import read_regular

from rdrr_runtime.images.decode import MAX_BYTES

PART: Final[Mapping[str, str]] = {"type": "image"}
"""What chat templates know an image as."""

_VIDEO: Final[Mapping[str, str]] = {"type": "video"}

_KINDS = ("image", "image_url", "input_image")
"""Types of the parts of a message that are images, of transformers and of OpenAI's interfaces."""

MAX_RATE: Final = 1000
"""Most frames of a video in a second."""

_KEYS = ("image_url", "image", "url", "path")
"""Keys of such a part that say where the image is."""


ImageSource = str | Path | bytes
"""A data URL, the path of a file, or the bytes of one."""


@dataclass(frozen=True)
class VideoSource:
    """Where a video is.

    Attributes:
        frames: Its frames, each as an image is given; or where an animation or a folder is.
        rate: Frames in a second; None for that of the animation.
    """

    frames: tuple[ImageSource, ...] | ImageSource
    rate: float | None


def take_images(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """Return messages whose images are parts that templates know, and where the images are.

    Args:
        messages: Messages; a `content` may be a list of parts.

    Raises:
        UsageError: A part is an image and says nothing that can be one.
    """
    sources: list[Any] = []
    taken = [
        {**message, "content": [_taken(part, sources) for part in content]}
        if isinstance(message, Mapping) and isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]
    return taken, sources


def _taken(part: Any, sources: list[Any]) -> Any:
    """Return a part as templates know it; an image is added to the sources."""
    if isinstance(part, Mapping) and part.get("type") == "video":
        sources.append(_video(part))
        return dict(_VIDEO)
    if not isinstance(part, Mapping) or part.get("type") not in _KINDS:
        return part
    source = next((part[key] for key in _KEYS if part.get(key) is not None), None)
    source = source.get("url") if isinstance(source, Mapping) else source
    if not isinstance(source, str | Path | bytes):
        raise UsageError(
            "a part of a message is an image without content",
            expected="a data URL or the path of a file in `image_url`",
            found=type(source).__name__,
        )
    sources.append(source)
    return dict(PART)


def _video(part: Mapping[str, Any]) -> VideoSource:
    """Return where the video of a part is.

    Raises:
        UsageError: The part says nothing that can be one.
    """
    frames: Any = part.get("video")
    rate: Any = part.get("fps")
    listed = list(frames) if isinstance(frames, list | tuple) else [frames]
    if not listed or not all(isinstance(frame, str | Path | bytes) for frame in listed):
        raise UsageError(
            "a part of a message is a video without frames",
            expected="a list of images, a folder of them or an animation in `video`",
            found=type(frames).__name__,
        )
    is_number = type(rate) in (int, float) and 0 < rate <= MAX_RATE
    if rate is not None and not is_number:
        expected = f"frames in a second, above 0 and at most {MAX_RATE}"
        raise UsageError("`fps` of a video is not a rate", expected=expected, found=shown(rate))
    return VideoSource(tuple(listed) if isinstance(frames, list | tuple) else listed[0], rate)


def image_content(source: str | Path | bytes, where: object, *, files: bool = True) -> bytes:
    """Return the bytes of an image file.

    Args:
        source: A data URL, the path of a file, or the bytes themselves.
        where: What an error message calls the image.
        files: Whether a path is allowed; only if the user of this machine has named it.

    Raises:
        GenerationError: A data URL is damaged or too long.
        StoreError: A file cannot be read.
        UsageError: The source is none of these.
    """
    if isinstance(source, bytes):
        return source
    if isinstance(source, str) and source[:5].lower() == "data:":
        return parse_data_url(source, where)
    if isinstance(source, str) and "://" in source[:64]:
        raise UsageError(
            "images are not fetched from other machines",
            where=where,
            expected="a data URL" + (" or the path of a file" if files else ""),
            found=source[:64],
        )
    if not files:
        message = "only data URLs are taken as images"
        raise UsageError(message, where=where, expected="data:image/png;base64,...")
    return _file_content(local_path(source))


def parse_data_url(url: str, where: object = None, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a data URL in base64.

    Args:
        url: The URL.
        where: What an error message calls it.
        max_bytes: Most bytes of the content.

    Raises:
        GenerationError: The URL is no data URL in base64, or its content is too long.
    """
    head, comma, text = url.partition(",")
    if head[:5].lower() != "data:" or not comma or not head.lower().endswith(";base64"):
        raise GenerationError(
            "the data URL is not in base64",
            where=where,
            expected="data:image/png;base64,...",
            found=url[:64],
        )
    if len(text) > (max_bytes + 2) // 3 * 4:
        raise GenerationError(
            "the data URL is too long",
            where=where,
            expected=f"at most {max_bytes} bytes of content",
            found=f"{len(text)} characters",
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        message = "the data URL is damaged"
        raise GenerationError(message, where=where, found=error) from None


def _file_content(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_BYTES)
    except FormatError as error:
        raise GenerationError(
            error.message, where=path, expected=error.expected, found=error.found
        ) from error
    except OSError as error:
        raise StoreError("cannot be read", where=path, found=error.strerror) from error
