"""Videos as frames: which of them are taken, when they are, and their patches.

Frames that make a patch together become a part of the prompt of their own, like an image, behind
the time at which they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rdrr_format.errors import GenerationError
from rdrr_manifests.models import Processor, Video
from rdrr_manifests.models.processor import RESAMPLING

from rdrr_runtime.images.patches import ImagePatches, patches_of_frames

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ChosenFrames:
    """The frames of a video that a model sees.

    Attributes:
        numbers: Their numbers among all frames, in order.
        rate: Frames of the video in a second.
    """

    numbers: tuple[int, ...]
    rate: float

    def seconds(self, of_patch: int) -> tuple[float, ...]:
        """Return the time of the frames of each patch, of which the last may be repeated."""
        times = [number / self.rate for number in self.numbers]
        times += times[-1:] * (-len(times) % of_patch)
        return tuple(
            (times[first] + times[first + of_patch - 1]) / 2
            for first in range(0, len(times), of_patch)
        )


def chosen_frames(video: Video, total: int, rate: float, where: object = None) -> ChosenFrames:
    """Return which frames of a video a model sees.

    Args:
        video: The recipe.
        total: Number of frames.
        rate: Frames in a second.
        where: What an error message calls the video.

    Raises:
        GenerationError: There are fewer than two.
    """
    if total < 2:
        raise GenerationError(
            "a video has two frames or more", where=where, found=total, hint="give it as an image"
        )
    count = int(total / rate * video.frames_per_second)
    count = min(max(count, video.min_frames), video.max_frames, total)
    numbers = np.linspace(0, total - 1, count).round().astype(int)
    return ChosenFrames(tuple(numbers.tolist()), rate)


def frame_pixels(processor: Processor, image: Image, size: tuple[int, int]) -> np.ndarray:
    """Return the pixels of a frame in the height and width that it has at last."""
    if (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), RESAMPLING.index(processor.resample))
    return np.asarray(image)


def video_patches(processor: Processor, frames: Sequence[np.ndarray]) -> list[ImagePatches]:
    """Return the patches of a video, those of the frames of each patch apart.

    Args:
        processor: The recipe.
        frames: Pixels of the frames, see `frame_pixels`.
    """
    of_patch = processor.temporal_patch_size
    whole = [*frames, *[frames[-1]] * (-len(frames) % of_patch)]
    return [
        patches_of_frames(processor, whole[first : first + of_patch])
        for first in range(0, len(whole), of_patch)
    ]
