"""The frames of a video: images one by one, of a list or a folder, or those of an animation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rdrr_format.errors import GenerationError, UsageError
from rdrr_format.locations import is_url, local_path
from rdrr_format.stores import store_errors

from rdrr_runtime.images.decode import read_animation, read_image
from rdrr_runtime.images.sources import ImageSource, VideoSource, image_content

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FRAMES: Final = 1 << 14
"""Most frames of a video, of which a model sees some."""


@dataclass(frozen=True)
class Frames:
    """The frames of a video.

    Attributes:
        count: How many there are.
        rate: How many there are in a second.
        size: Height and width of the first; all must have it.
        read: Returns one by its number, in mode RGB. The numbers of calls must not fall.
    """

    count: int
    rate: float
    size: tuple[int, int]
    read: Callable[[int], Image]


def open_frames(source: VideoSource, where: str, *, files: bool = True) -> Frames:
    """Return the frames of a video, of which only the first has been read.

    Args:
        source: Where they are.
        where: What an error message calls the video.
        files: Whether paths are allowed.

    Raises:
        GenerationError: A file is no image that is read, or is too large; or there are too many
            frames.
        StoreError: A file cannot be read.
        UsageError: Pillow is not installed, or the rate is not known.
    """
    listed = _listed(source, files=files)
    if listed is None:
        assert not isinstance(source.frames, tuple), "its images would be listed"
        content = image_content(source.frames, where, files=files)
        animation = read_animation(content, MAX_FRAMES, where)
        rate = source.rate or animation.rate
        return Frames(animation.count, _known(rate, where), animation.size, animation.read)
    if len(listed) > MAX_FRAMES:
        raise GenerationError(
            "the video has too many frames",
            where=where,
            expected=f"at most {MAX_FRAMES}",
            found=len(listed),
        )
    if not listed:
        raise GenerationError("the video has no frames", where=where)

    def read(number: int) -> Image:
        name = f"{where}, frame {number + 1}"
        return read_image(image_content(listed[number], name, files=files), name)

    first = read(0)
    size = first.height, first.width

    def read_alike(number: int) -> Image:
        image = read(number)
        if (image.height, image.width) != size:
            raise GenerationError(
                "the frames of a video have one size",
                where=f"{where}, frame {number + 1}",
                expected=f"{size[1]} x {size[0]}",
                found=f"{image.width} x {image.height}",
            )
        return image

    return Frames(len(listed), _known(source.rate, where), size, read_alike)


def _known(rate: float | None, where: str) -> float:
    if rate is None:
        message = "it is not known how many frames of the video a second has"
        raise UsageError(message, where=where, expected="`fps` in the part of the message")
    return rate


def _listed(source: VideoSource, *, files: bool) -> tuple[ImageSource, ...] | None:
    """Return the images of a video, in order; None for an animation."""
    if isinstance(source.frames, tuple):
        return source.frames
    frames = source.frames
    if isinstance(frames, bytes) or not files:
        return None
    if str(frames)[:5].lower() == "data:" or is_url(frames):
        return None
    path = local_path(frames)
    with store_errors(path):
        return tuple(sorted(path.iterdir())) if path.is_dir() else None
