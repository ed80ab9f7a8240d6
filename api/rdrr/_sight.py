"""The images of prompts: encoded by the vision tower, once each, and put in their places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import GenerationError, UsageError

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.gpu_tower import GpuTower
    from rdrr_runtime.images.patches import ImagePatches
    from rdrr_runtime.images.rows import PromptIds, SeenImages
    from rdrr_runtime.reference.tower import CpuTower

    from rdrr._backends import OpenedBackend


PLACE, VIDEO_PLACE = "<image>", "<video>"
"""What stands in a text for the next image, and for the next video."""


def content_with_images(
    text: str, images: Sequence[str | Path], videos: Sequence[str | Path] = ()
) -> str | list[dict[str, Any]]:
    """Return the content of a message: a text, with images and videos in their places.

    Args:
        text: The text, which says `<image>` and `<video>` where they are, or before which they are.
        images: Files of images.
        videos: Files of animations, or folders of frames.

    Raises:
        UsageError: The text has some places, but not one for each.
    """
    shown: dict[str, list[dict[str, Any]]] = {
        PLACE: [{"type": "image_url", "image_url": {"url": str(file)}} for file in images],
        VIDEO_PLACE: [{"type": "video", "video": str(file)} for file in videos],
    }
    shown = {place: parts for place, parts in shown.items() if parts}
    if not shown:
        return text
    pieces = re.split(f"({'|'.join(shown)})", text)
    before: list[dict[str, Any]] = []
    for place, parts in shown.items():
        count = pieces.count(place)
        if not count:
            before += parts
        elif count != len(parts):
            raise UsageError(
                f"the text does not have one place for each {place[1:-1]}",
                expected=f"{len(parts)} times {place}, or none",
                found=count,
            )
    rest = {place: iter(parts) for place, parts in shown.items()}
    said = (next(rest[p]) if p in rest else {"type": "text", "text": p} for p in pieces if p)
    return [*before, *said]


class Sight:
    """The vision tower of a package, which is loaded when the first image comes.

    Args:
        package: The package.
        opened: Its backend, on whose device the tower runs.
    """

    def __init__(self, package: Package, opened: OpenedBackend) -> None:
        self._package, self._opened = package, opened
        self._tower: CpuTower | GpuTower | None = None
        self._known: dict[bytes, range] = {}

    def ids(
        self, ids: Sequence[int], placeholder: int, images: Sequence[ImagePatches]
    ) -> PromptIds:
        """Return the ids of a prompt with those of its images, which they hold.

        Args:
            ids: Ids of the prompt, in which each token of an image is the same.
            placeholder: The id of that token.
            images: The images, in the order of the prompt.

        Raises:
            GenerationError: The package has no tower.
            DeviceError: There is too little memory.
        """
        from rdrr_runtime.backend import images_of

        seen = images_of(self._opened.backend)
        if seen is None:
            raise GenerationError(
                "the package has no vision tower that this version runs",
                where=self._package.where,
                hint="leave the images out",
            )
        seen.forget()
        self._known = {key: known for key, known in self._known.items() if seen.knows(known.start)}
        tokens = chain.from_iterable([self._tokens(seen, image) for image in images])
        return seen.held([next(tokens) if token == placeholder else token for token in ids])

    def _tokens(self, seen: SeenImages, image: ImagePatches) -> range:
        """Return the ids of the tokens of an image, which is encoded if it is a new one."""
        from rdrr_runtime.images.tower import content_digest

        key = content_digest(image.grid, image.patches)
        if key not in self._known:
            self._known[key] = seen.add(self._loaded().encode(image), key)
        else:
            seen.use(self._known[key].start)
        return self._known[key]

    def _loaded(self) -> CpuTower | GpuTower:
        """Return the tower, which is loaded now if it was not before."""
        if self._tower is None:
            device = self._opened.device
            if device is None:
                from rdrr_runtime.reference.tower import CpuTower

                self._tower = CpuTower(self._package)
            else:
                from rdrr_runtime.gpu_tower import GpuTower

                self._tower = GpuTower(self._package, device)
        return self._tower

    def close(self) -> None:
        """Free the memory of the tower."""
        close = getattr(self._tower, "close", None)
        if close is not None:
            close()
        self._tower = None
